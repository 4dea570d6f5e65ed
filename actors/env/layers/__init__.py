"""Building blocks of hosts and seeds: convolutions, BatchNorm, and operations that may be fused."""
