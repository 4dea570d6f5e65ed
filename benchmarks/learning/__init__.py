"""What the benchmarks of learning share: runs in one process, tasks that need memory, and other libraries."""
