"""The gain: how the write direction a follows from A k (line 18 of Algorithm 1)."""

from torch import Tensor

from varla.ops.algebra import dot
from varla.ops.features import safe_reciprocal, unit, unit_backward


def write_direction(alpha: Tensor, k_hat: Tensor, gain: str) -> Tensor:
    """Scale alpha = A k by the gain: "unit" so that |alpha| = 1, "projection" so that k . alpha = 1, "raw" not."""
    return Gain(gain, alpha, k_hat).a


class Gain:
    """The write directions a from P, whose row t is A_t k_t; see `write_direction`."""

    def __init__(self, kind: str, P: Tensor, K: Tensor):
        """P, K [M, n, D]."""
        self.kind, self.K = kind, K
        if kind == "unit":
            self.a, self._scale = unit(P)
        elif kind == "projection":
            self._scale = safe_reciprocal(dot(K, P))
            self.a = P * self._scale
        else:
            self.a = P

    @classmethod
    def of(cls, kind: str, a: Tensor, scale: Tensor, K: Tensor) -> "Gain":
        """The gain of a forward that is already computed, from a and the factor that P was multiplied by."""
        gain = cls("raw", a, K)
        gain.kind, gain._scale = kind, scale
        return gain

    def backward(self, da: Tensor) -> tuple[Tensor, Tensor | float]:
        """(dP, the part of dK that does not come through P)."""
        if self.kind == "unit":
            return unit_backward(da, self.a, self._scale), 0.0
        if self.kind == "projection":
            along = dot(da, self.a)
            return (da - along * self.K) * self._scale, -along * self.a
        return da, 0.0
