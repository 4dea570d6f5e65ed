"""Parts of the environment benchmark, `benchmarks.env`."""
