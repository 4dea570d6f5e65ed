"""One MLP host with its seeds as machine code: what `actors.env.reference_network` computes, for one environment.

On a CPU these networks are so small that a tensor library spends its time between operations, not in them. Here an
epoch is one call: Numba compiles plain loops, OpenBLAS multiplies the matrices, and a network's tensors stay in the
nearest cache. Hidden tensors are `[units, rows]`: norms average over the first dimension and every loop runs along
the second. Environments share nothing, so none can move another's bits.
"""
