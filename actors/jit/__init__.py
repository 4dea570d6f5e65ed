"""What all compiled kernels share: Numba's decorators with our options, the folder that caches code, and compiling."""
