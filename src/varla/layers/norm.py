"""Norms as modules."""

import torch
from torch import Tensor, nn

from varla.ops.norm import rms_norm

NORMS = ("none", "layer", "rms")


class RMSNorm(nn.Module):
    """x / sqrt(mean(x ** 2) + eps) * weight, computed in float32 or wider; a kernel on a GPU."""

    def __init__(self, size: int, eps: float | None = None, *, wide: bool = False):
        """Over the last dimension, of this size. `eps` None: the machine epsilon of the weight's type.

        `wide`: under autocast, too, the result has the wider type, for results that not only a matrix product reads.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.wide = eps, wide

    def reset_parameters(self) -> None:
        """All weights 1, as in PyTorch's own norms."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[*, size] to [*, size] in the same type, or the weight's if that is wider; under autocast see `rms_norm`."""
        eps = torch.finfo(self.weight.dtype).eps if self.eps is None else self.eps
        return rms_norm(x, self.weight, eps, wide=self.wide)

    def extra_repr(self) -> str:
        """Its size and epsilon."""
        return f"{self.weight.shape[0]}, eps={self.eps}"


def make_norm(kind: str, size: int, eps: float | None = None) -> nn.Module:
    """One of NORMS over the last dimension, of this size. `eps` None: PyTorch's default for that norm."""
    if kind == "layer":
        return nn.LayerNorm(size, eps=1e-5 if eps is None else eps)
    return RMSNorm(size, eps) if kind == "rms" else nn.Identity()
