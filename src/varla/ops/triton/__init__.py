"""The Triton kernels. Import it only where Triton is installed: `varla.backends()` says whether it is."""

from varla.ops.triton.chunk_op import chunks_triton
from varla.ops.triton.feature_op import directions
from varla.ops.triton.op import vla_triton
from varla.ops.triton.token_rows import rows_triton

__all__ = ["chunks_triton", "directions", "rows_triton", "vla_triton"]
