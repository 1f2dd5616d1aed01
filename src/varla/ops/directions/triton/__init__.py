"""Kernels of `directions`, and the launcher beside them."""
