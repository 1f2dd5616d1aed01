"""Code that all Triton kernels share, and kernels for the other parts of a layer: convolution, norm, rotary, gate.

Import it only if Triton is installed; `varla.backends()` says whether it is.
"""
