"""MLP hosts as compiled kernels: networks whose epochs are single calls of `actors.kernels.hosts`."""
