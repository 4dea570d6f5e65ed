"""The parts of `benchmarks.env`."""
