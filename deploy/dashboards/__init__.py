"""Grafana dashboards, made from the table of metrics."""
