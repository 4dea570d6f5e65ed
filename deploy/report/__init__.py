"""The report of a run, its pictures, and live progress."""
