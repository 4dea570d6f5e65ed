"""The policy's step as one compiled CPU kernel, for the network of `actors.policy.network`.

A step of a small batch is some 140 operations of a tensor library, whose overhead exceeds their arithmetic. Here it is
one call that releases the GIL: Numba compiles plain loops over rows, and `tiles.py` multiplies matrices. Everything is
float32 in flat arrays; the weights are laid out once per version (`actors.policy.acting.layout`). The result of a row
does not depend on the other rows.

Read `step.py`, then what it calls in this order: `encoder.py`, `cores.py`, `heads.py`. They rest on `net.py` (sizes and
weights), `choice.py` (masks, floors and sampling), `functions.py` (elementwise functions, LayerNorm) and `tiles.py`.
`cache.py` keeps the compiled code on disk, keyed by a hash of all files in this folder.
"""
