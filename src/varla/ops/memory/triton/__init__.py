"""Kernels of `memory`, in chunks and token by token, their launcher, and the PyTorch operators."""
