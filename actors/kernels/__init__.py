"""All compiled kernels, in packages named by what they compute; and what these share: Numba's decorators with our
options, vectors and matrix products, and the folders on disk that cache compiled code.
"""
