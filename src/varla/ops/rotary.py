"""Rotary positions (Su et al. 2021): dimensions i and i + D / 2 are rotated by position * base ** (-2 i / D)."""

import torch
from torch import Tensor

from varla.ops.backends import can_launch


def angles(position: Tensor, D: int, base: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """(cosines, sines) [B, T, D / 2] for positions [B, T], to rotate queries and keys of this dtype.

    Angles are computed in float64: in float32 they lose precision beyond about ten thousand tokens.
    """
    rate = base ** (-torch.arange(D // 2, dtype=torch.float64, device=position.device) / (D // 2))
    angle = position[..., None] * rate
    working = torch.promote_types(dtype, torch.float32)
    return angle.cos().to(working), angle.sin().to(working)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [B, T, H, D] by angles given as cos, sin [B, T, D / 2], or [1, T, D / 2] for all rows.

    On a GPU this is one kernel.
    """
    if can_launch(x):
        from varla.ops.triton.rotary import turn

        return turn(x, cos, sin, False)
    return plain(x, cos, sin)


def plain(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The same in PyTorch."""
    cos, sin = cos[:, :, None], sin[:, :, None]
    first, second = x.to(cos.dtype).chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)
