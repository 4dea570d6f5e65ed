"""The report of a run, its figures, and the live progress display."""
