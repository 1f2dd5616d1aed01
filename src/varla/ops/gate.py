"""The gate of SwiGLU (Shazeer 2020): silu(g) * x."""

from torch import Tensor
from torch.nn.functional import silu

from varla.ops.backends import worth_a_kernel


def gated(g: Tensor, x: Tensor) -> Tensor:
    """silu(g) * x for two tensors of one shape. Large tensors on a GPU use one kernel, which saves only g and x."""
    if g.dtype == x.dtype and worth_a_kernel(g, x):
        from varla.ops.triton.gate import gate

        return gate(g, x)
    return plain(g, x)


def plain(g: Tensor, x: Tensor) -> Tensor:
    """The same in PyTorch."""
    return silu(g) * x
