"""The Triton kernels. Import it only where Triton is installed: `varla.backends()` says whether it is."""

from varla.ops.triton.decayed import decayed_triton
from varla.ops.triton.op import vla_triton

__all__ = ["decayed_triton", "vla_triton"]
