"""Kernels of `memory`, and the launcher beside them."""
