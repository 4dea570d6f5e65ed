"""Compiled CPU kernels of the numba backend, which train and evaluate one MLP host with its seeds and columns.

On a CPU these networks are so small that a tensor library spends most of its time between operations. Here an epoch is
one call: Numba compiles loops over vectors of the processor, and the tensors of a network stay in the cache. Matrix
products are loops too, since a BLAS takes as long to be called as to multiply matrices of this size. Hidden tensors are
`[units, rows]`, so that norms average over the first dimension and every loop runs along the second.
Environments share nothing: the results of one do not depend on the others.

Read `actors.env.compiled` (`NumbaNetworks`, the `FleetNetworks` of this backend), then the kernels that it calls,
`epoch.py` and `evaluate.py`; they rest on `network.py` (host), `columns.py` (the same for columns of any width),
`seeds.py` (seeds and blends), `layers.py` and `products.py`.
"""
