"""Feature map and normalisations, each with the adjoint that the hand-written backwards use.

Every form of every mechanism goes through these few functions, so that a zero vector, or a very negative
input, means the same thing everywhere.
"""

import torch
from torch import Tensor

FEATURE_MAPS = ("elu1", "identity")


def feature(x: Tensor, kind: str) -> Tensor:
    """Apply the feature map phi, elementwise: any shape in, the same shape out.

    "elu1" is ELU(x) + 1, written so that it is exp(x) itself for x <= 0: computing ELU first and adding 1 afterwards
    would round every feature below 6e-8 to zero in float32.
    """
    if kind == "identity":
        return x
    return torch.exp(torch.clamp(x, max=0)) + torch.relu(x)


def feature_backward(grad: Tensor, phi: Tensor, kind: str) -> Tensor:
    """Gradient of the input from that of phi = feature(x). The slope of ELU + 1 is min(phi, 1)."""
    return grad if kind == "identity" else grad * phi.clamp(max=1)


def unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Divide the last dimension by its 2-norm; return (x / |x|, 1 / |x|), the second with last dimension 1.

    A zero vector stays zero and gets zero gradient: it has no direction to write or to penalise. (So does one of
    denormal numbers only.) Squares are taken after division by the largest entry, so that no length under- or
    overflows; that divisor drops out of the result and of its derivative, and is a constant to autograd.
    """
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest < torch.finfo(x.dtype).tiny
    scale = 1 / torch.where(zero, 1, largest)
    scaled = x * scale
    inverse = torch.where(zero, 0, torch.rsqrt(torch.where(zero, 1, (scaled * scaled).sum(-1, keepdim=True))))
    return scaled * inverse, scale * inverse


def unit_backward(grad: Tensor, y: Tensor, inverse: Tensor) -> Tensor:
    """Gradient of x from that of y, where (y, inverse) = unit(x): the part orthogonal to y, over |x|."""
    return (grad - y * (y * grad).sum(-1, keepdim=True)) * inverse


class Features:
    """Features F = feature(x) and what S is written and read with: y = F, or F / |F| with `normalize`."""

    def __init__(self, x: Tensor, kind: str, normalize: bool, valid: Tensor | None = None):
        """`x` raw [..., D]. Tokens that are not `valid` get the zero feature, which writes nothing."""
        self.kind, self.normalize = kind, normalize
        self.F = feature(x, kind)
        if valid is not None:
            self.F = torch.where(valid, self.F, 0)
        self.y, self._inverse = unit(self.F) if normalize else (self.F, torch.empty(0))

    def backward(self, dy: Tensor, dF: Tensor | float = 0.0) -> Tensor:
        """Gradient of x from those of y and F."""
        if self.normalize:
            dy = unit_backward(dy, self.y, self._inverse)
        return feature_backward(dy + dF, self.F, self.kind)


def scaled_features(
    x: Tensor, beta: Tensor | None, kind: str, normalize: bool, scale: float, dtype: torch.dtype
) -> list[Tensor]:
    """[y], or [y, beta y] if there is a beta [..., 1]: y = scale * feature(x), of length `scale` with `normalize`.

    Computed in float32 or wider, and only then rounded to `dtype`.
    """
    y = Features(x.to(torch.promote_types(x.dtype, torch.float32)), kind, normalize).y * scale
    return [y.to(dtype)] if beta is None else [y.to(dtype), (beta.to(y.dtype) * y).to(dtype)]


def safe_reciprocal(x: Tensor) -> Tensor:
    """1 / x, and 0 (with gradient 0) where x is 0. NaN stays NaN."""
    zero = x == 0
    return torch.where(zero, 0, 1 / torch.where(zero, 1, x))
