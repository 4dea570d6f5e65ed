"""The registry of all metrics, exporters for Ray and Prometheus, and the status of a run."""
