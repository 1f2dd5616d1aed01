"""The Triton kernels. Import it only where Triton is installed: `varla.backends()` says whether it is."""

from varla.ops.triton.op import vla_triton
from varla.ops.triton.token_rows import rows_triton

__all__ = ["rows_triton", "vla_triton"]
