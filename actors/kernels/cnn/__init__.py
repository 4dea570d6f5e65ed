"""Kernels for the operations of convolutional hosts on a CPU, in single precision.

Tensors are `[E, C, height, width, M]`: rows of data are innermost, so that every operation works on whole vectors of
them and no sum crosses environments. Read `tiles.py` (sums that stay in registers), `convolution.py`, `norm.py` and
`space.py` (the kernels), and `functions.py` (the kernels as functions of torch tensors, with gradients).
"""
