"""Kernels of `directions`, their launcher, and the PyTorch operator."""
