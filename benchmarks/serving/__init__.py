"""Parts of `python -m benchmarks.serve`: the load, and the servers."""
