"""Feature map and normalisations, each with the adjoint that the hand-written backwards use.

Every PyTorch form of every mechanism uses these functions, so all of them treat a zero vector, or a very negative
input, alike.
"""

import torch
from torch import Tensor

FEATURE_MAPS = ("elu1", "silu", "identity")
LARGEST = 1e38  # scalars of the operators are below: float32 holds little more


def feature(x: Tensor, kind: str) -> Tensor:
    """Apply the feature map phi elementwise, to any shape.

    "elu1" is ELU(x) + 1. For x <= 0 it is computed as exp(x): ELU(x) first and + 1 afterwards would round every feature
    below 6e-8 to zero in float32. "silu" is x sigmoid(x).
    """
    if kind == "identity":
        return x
    if kind == "silu":
        return torch.nn.functional.silu(x)
    return torch.exp(torch.clamp(x, max=0)) + torch.relu(x)


def feature_backward(grad: Tensor, x: Tensor, phi: Tensor, kind: str) -> Tensor:
    """Gradient of x from the gradient of phi = feature(x). The slope of ELU + 1 is min(phi, 1)."""
    if kind == "identity":
        return grad
    if kind == "silu":
        open_ = torch.sigmoid(x)
        return grad * (open_ + phi * (1 - open_))
    return grad * phi.clamp(max=1)


def unit(x: Tensor) -> tuple[Tensor, Tensor]:
    """Divide the last dimension by its 2-norm: (x / |x| [..., D], 1 / |x| [..., 1]).

    A zero vector stays zero and gets zero gradient, because it has no direction. So does a vector of denormal numbers.
    We divide by the largest entry before squaring, so that no length under- or overflows. The result and its derivative
    do not depend on that divisor, so autograd may treat it as a constant.
    """
    largest = x.detach().abs().amax(-1, keepdim=True)
    zero = largest < torch.finfo(x.dtype).tiny
    scale = 1 / torch.where(zero, 1, largest)
    scaled = x * scale
    inverse = torch.where(zero, 0, torch.rsqrt(torch.where(zero, 1, (scaled * scaled).sum(-1, keepdim=True))))
    return scaled * inverse, scale * inverse


def unit_backward(grad: Tensor, y: Tensor, inverse: Tensor) -> Tensor:
    """Gradient of x from that of y, where (y, inverse) = unit(x): the part orthogonal to y, divided by |x|."""
    return (grad - y * (y * grad).sum(-1, keepdim=True)) * inverse


class Features:
    """Features F = feature(x), and the vectors y that S is written and read with: F, or F / |F| with `normalize`."""

    def __init__(self, x: Tensor, kind: str, normalize: bool, valid: Tensor | None = None):
        """`x` is raw, [..., D]. Tokens that are not `valid` get a zero feature, which writes nothing."""
        self.x, self.kind, self.normalize = x, kind, normalize
        self.F = feature(x, kind)
        if valid is not None:
            self.F = torch.where(valid, self.F, 0)
        self.y, self._inverse = unit(self.F) if normalize else (self.F, torch.empty(0))

    def backward(self, dy: Tensor, dF: Tensor | float = 0.0) -> Tensor:
        """Gradient of x from the gradients of y and F."""
        if self.normalize:
            dy = unit_backward(dy, self.y, self._inverse)
        return feature_backward(dy + dF, self.x, self.F, self.kind)


def scaled_features(
    x: Tensor, beta: Tensor | None, kind: str, normalize: bool, scale: float, dtype: torch.dtype
) -> list[Tensor]:
    """[y], or [y, beta y] with beta [..., 1], where y = scale * feature(x), of length `scale` with `normalize`.

    The computation is in float32 or wider; the results are rounded to `dtype`.
    """
    y = Features(x.to(torch.promote_types(x.dtype, torch.float32)), kind, normalize).y * scale
    return [y.to(dtype)] if beta is None else [y.to(dtype), (beta.to(y.dtype) * y).to(dtype)]


def safe_reciprocal(x: Tensor) -> Tensor:
    """1 / x; 0 with gradient 0 where x is 0. NaN stays NaN."""
    zero = x == 0
    return torch.where(zero, 0, 1 / torch.where(zero, 1, x))
