"""The table of metrics, its exporters, and the status of a run."""
