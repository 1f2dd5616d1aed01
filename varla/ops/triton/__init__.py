"""The Triton kernels. Import it only where Triton is installed: `varla.backends()` says whether it is."""

from varla.ops.triton.op import vla_triton

__all__ = ["vla_triton"]
