"""The RMS norm as a module."""

import torch
from torch import Tensor, nn

from varla.ops.norm import rms_norm


class RMSNorm(nn.Module):
    """x / sqrt(mean(x ** 2) + eps) * weight, found in float32 or better: PyTorch's, and a kernel on a GPU."""

    def __init__(self, size: int, eps: float | None = None, *, wide: bool = False):
        """Over the last dimension, of this size. `eps` None: what 1 can be told from, in the weight's type.

        `wide`: under autocast, too, the result has the wider type, for one that is not read by a matrix alone.
        """
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps, self.wide = eps, wide

    def forward(self, x: Tensor) -> Tensor:
        """[*, size] to [*, size] in the same type, or the weight's if that is wider; under autocast see `rms_norm`."""
        eps = torch.finfo(self.weight.dtype).eps if self.eps is None else self.eps
        return rms_norm(x, self.weight, eps, wide=self.wide)

    def extra_repr(self) -> str:
        """Its size and epsilon."""
        return f"{self.weight.shape[0]}, eps={self.eps}"
