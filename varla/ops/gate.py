"""A gate with SiLU, as in SwiGLU (Shazeer 2020): silu(g) * x."""

from torch import Tensor
from torch.nn.functional import silu

from varla.ops.backends import no_kernels


def gated(g: Tensor, x: Tensor) -> Tensor:
    """silu(g) * x, of two tensors of one shape and type. On a GPU one kernel, which keeps nothing but g and x."""
    if g.is_cuda and g.dtype == x.dtype and no_kernels(g) is None:
        from varla.ops.triton.gate import gate

        return gate(g, x)  # type: ignore[no-any-return]
    return plain(g, x)


def plain(g: Tensor, x: Tensor) -> Tensor:
    """The same by PyTorch."""
    return silu(g) * x
