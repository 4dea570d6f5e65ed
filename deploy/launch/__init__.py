"""Launch and supervise runs, on one machine or on a Ray cluster."""
