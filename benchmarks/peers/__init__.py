"""What other libraries can do: each claim is a small run, `python -m benchmarks.peers.NAME`."""
