"""Launching runs: on one machine, on a Ray cluster, and what supervises them."""
