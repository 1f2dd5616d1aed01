"""One segment of each mechanism, forward and backward, put together from the A part, the S part and the normaliser.

A cell sees G chunks of N = rows x heads at once. Inputs arrive raw, as [M, n, *] with M = G N, in the state's
precision; the state as [N, *]. `forward` also returns the state before each chunk [M, *], from which `backward`
recomputes everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from varla.ops.chunk import memory, penalty
from varla.ops.chunk.algebra import symmetric
from varla.ops.chunk.normalizer import Normalizer
from varla.ops.chunk.normalizer import scan as normalizer_scan
from varla.ops.features import feature, feature_backward, safe_reciprocal, unit, unit_backward
from varla.ops.settings import DeltaRuleSettings, LinearAttentionSettings, VLASettings

Tensors = Sequence[Tensor]


@dataclass(frozen=True)
class Context:
    """What a cell may know of its window: which tokens exist (None: all), and the refresh beat (None: no refresh)."""

    valid: Tensor | None
    beat: penalty.Beat | None


class Cell(Protocol):
    """The chunk form of one mechanism."""

    def forward(self, inputs: Tensors, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """Returns (outputs [M, n, Dv], state before each chunk, state after the last)."""
        ...

    def backward(
        self, inputs: Tensors, starts: Tensors, context: Context, dO: Tensor, dstate: Tensors
    ) -> tuple[Tensors, Tensors]:
        """Returns (gradients of the inputs, gradients of the state before the first chunk)."""
        ...


class Keys:
    """Key features F and the keys K that S is written and read with: F, or F / |F|."""

    def __init__(self, k: Tensor, kind: str, normalize: bool, valid: Tensor | None):
        """`k` raw [M, n, D]. Tokens that do not exist get the zero feature, which writes nothing."""
        self.kind, self.normalize = kind, normalize
        self.F = feature(k, kind)
        if valid is not None:
            self.F = torch.where(valid, self.F, 0)
        self.K, self._inverse = unit(self.F) if normalize else (self.F, torch.empty(0))

    def backward(self, dK: Tensor, dF: Tensor | float) -> Tensor:
        """Gradient of the raw keys."""
        if self.normalize:
            dK = unit_backward(dK, self.K, self._inverse)
        return feature_backward(dK + dF, self.F, self.kind)


class VLACell:
    """Inputs q, k, v, u; state S, A, z."""

    def __init__(self, settings: VLASettings):
        """Remember the scalars."""
        self.settings = settings

    def forward(self, inputs: Tensors, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See Cell."""
        s = self.settings
        q, k, v, u = inputs
        S, A, z = state
        A = symmetric(A)
        Q, keys = feature(q, s.feature_map), Keys(k, s.feature_map, s.normalize_key, context.valid)
        if s.update_penalty:
            A0, Z, A = penalty.scan(unit(u)[0] * s.penalty_scale, A, context.beat)
        else:
            A0, Z = A.repeat(k.shape[0] // A.shape[0], 1, 1), None
        P = penalty.apply_A(keys.K, A0, Z, context.beat)
        a = Gain(s.gain, P, keys.K).a
        read, S0, S = memory.forward(Q, keys.K, v, a, S)
        z0, z = normalizer_scan(keys.F, z)
        o = Normalizer(Q, keys.F, z0, s.eps, s.normalizer).divide(read)
        return o, (S0, A0, z0), (S, A, z)

    def backward(
        self, inputs: Tensors, starts: Tensors, context: Context, dO: Tensor, dstate: Tensors
    ) -> tuple[Tensors, Tensors]:
        """See Cell."""
        s = self.settings
        q, k, v, u = inputs
        S0, A0, z0 = starts
        dS, dA, dz = dstate
        dA = symmetric(dA)
        Q, keys = feature(q, s.feature_map), Keys(k, s.feature_map, s.normalize_key, context.valid)
        U, inverse = unit(u)
        U = U * s.penalty_scale
        parts = penalty.factor_all(U, A0, context.beat) if s.update_penalty else None
        P = penalty.apply_A(keys.K, A0, parts.Z if parts else None, context.beat)
        gain = Gain(s.gain, P, keys.K)

        normalizer = Normalizer(Q, keys.F, z0, s.eps, s.normalizer)
        dread = normalizer.divide(dO)
        dQ, dK, dV, da, dS, read = memory.backward(Q, keys.K, v, gain.a, S0, dread, dS)
        dQ_norm, dF, dz = normalizer.backward(dread, read, dz)
        dP, dK_gain = gain.backward(da)
        if parts:
            dU, dK_penalty, dA = penalty.backward(U, keys.K, A0, parts, dP, dA, context.beat)
            du = unit_backward(dU * s.penalty_scale, U / s.penalty_scale, inverse)
        else:
            du = torch.zeros_like(u)
            dK_penalty, dA = penalty.backward_fixed(keys.K, A0, dP, dA)
        dq = feature_backward(dQ + dQ_norm, Q, s.feature_map)
        dk = keys.backward(dK + dK_gain + dK_penalty, dF)
        return (dq, dk, dV, du), (dS, dA, dz)


class Gain:
    """The write direction a from P, row t of which is A_t k_t; see `reference.write_direction`."""

    def __init__(self, kind: str, P: Tensor, K: Tensor):
        """P, K [M, n, D]."""
        self.kind, self.K = kind, K
        if kind == "unit":
            self.a, self._scale = unit(P)
        elif kind == "projection":
            self._scale = safe_reciprocal((K * P).sum(-1, keepdim=True))
            self.a = P * self._scale
        else:
            self.a = P

    def backward(self, da: Tensor) -> tuple[Tensor, Tensor | float]:
        """(dP, what reaches K other than through P)."""
        if self.kind == "unit":
            return unit_backward(da, self.a, self._scale), 0.0
        if self.kind == "projection":
            along = (da * self.a).sum(-1, keepdim=True)
            return (da - along * self.K) * self._scale, -along * self.a
        return da, 0.0


class LinearCell:
    """Inputs q, k, v; state S, z."""

    def __init__(self, settings: LinearAttentionSettings):
        """Remember the scalars."""
        self.settings = settings

    def forward(self, inputs: Tensors, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See Cell."""
        s = self.settings
        q, k, v = inputs
        S, z = state
        Q, F = feature(q, s.feature_map), Keys(k, s.feature_map, False, context.valid).F
        S0, S = memory.affine_scan(None, v.mT @ F, S)
        z0, z = normalizer_scan(F, z)
        read = Q @ S0.mT + (Q @ F.mT).tril_() @ v
        return Normalizer(Q, F, z0, s.eps, s.normalizer).divide(read), (S0, z0), (S, z)

    def backward(
        self, inputs: Tensors, starts: Tensors, context: Context, dO: Tensor, dstate: Tensors
    ) -> tuple[Tensors, Tensors]:
        """See Cell."""
        s = self.settings
        q, k, v = inputs
        S0, z0 = starts
        dS, dz = dstate
        Q, keys = feature(q, s.feature_map), Keys(k, s.feature_map, False, context.valid)
        normalizer = Normalizer(Q, keys.F, z0, s.eps, s.normalizer)
        dread = normalizer.divide(dO)
        C = (Q @ keys.F.mT).tril_()
        read = Q @ S0.mT + C @ v
        after, dS = memory.affine_scan(None, dread.mT @ Q, dS, reverse=True)
        X = (dread @ v.mT).tril_()
        dQ_norm, dF, dz = normalizer.backward(dread, read, dz)
        dQ = dread @ S0 + X @ keys.F + dQ_norm
        dV = C.mT @ dread + keys.F @ after.mT
        dk = keys.backward(X.mT @ Q + v @ after, dF)
        return (feature_backward(dQ, Q, s.feature_map), dk, dV), (dS, dz)


class DeltaCell:
    """Inputs q, k, v, beta (last dimension 1); state S. The write direction is a = beta k."""

    def __init__(self, settings: DeltaRuleSettings):
        """Remember the scalars."""
        self.settings = settings

    def forward(self, inputs: Tensors, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See Cell."""
        s = self.settings
        q, k, v, beta = inputs
        Q = Keys(q, s.feature_map, s.normalize_query, None).K * s.scale
        K = Keys(k, s.feature_map, s.normalize_key, context.valid).K
        read, S0, S = memory.forward(Q, K, v, beta * K, state[0])
        return read, (S0,), (S,)

    def backward(
        self, inputs: Tensors, starts: Tensors, context: Context, dO: Tensor, dstate: Tensors
    ) -> tuple[Tensors, Tensors]:
        """See Cell."""
        s = self.settings
        q, k, v, beta = inputs
        queries = Keys(q, s.feature_map, s.normalize_query, None)
        keys = Keys(k, s.feature_map, s.normalize_key, context.valid)
        dQ, dK, dV, da, dS, _ = memory.backward(queries.K * s.scale, keys.K, v, beta * keys.K, starts[0], dO, dstate[0])
        dbeta = (da * keys.K).sum(-1, keepdim=True)
        return (queries.backward(dQ * s.scale, 0.0), keys.backward(dK + beta * da, 0.0), dV, dbeta), (dS,)
