"""What the Triton kernels share, and the kernels of what layers have beside their mechanisms.

Import it only where Triton is installed: `varla.backends()` says whether it is.
"""
