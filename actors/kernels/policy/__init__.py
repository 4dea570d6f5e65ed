"""The policy's network as compiled CPU kernels: it acts, is evaluated at given actions, and is differentiated.

A step of a small batch is some 140 operations of a tensor library, whose overhead exceeds their arithmetic. Here it is
one call that releases the GIL: Numba compiles plain loops over rows, and `actors.kernels.matmul` multiplies matrices.
Everything is float32 in flat arrays. The forward pass reads weights that are packed once per version. The result of a
row does not depend on the other rows.

Read `run.py`, then what it calls in this order: `encoder.py`, `core.py`, `heads.py`, `scores.py`. They rest on
`sizes.py` (sizes, weights and activations), `choice.py` (sampling), `layers.py` and `functions.py`.
"""
