"""Benchmarks: each prints a table, and its targets as ratios measured in the same run."""
