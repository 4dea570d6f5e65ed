"""The parts of `python -m benchmarks.serve`."""
