"""The chunk form of `memory`: S and z over n tokens, read by q."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from varla.ops.algebra import by_chunk, dot
from varla.ops.chunk.driver import Context, Inputs, Tensors
from varla.ops.features import Features
from varla.ops.memory.chunk_decay import Decay, Decayed, DecayedNormalizer, decayed_scan
from varla.ops.memory.chunk_rules import Delta, Rule, Sum, Through
from varla.ops.memory.settings import MemorySettings


class MemoryCell:
    """The chunk form of `memory` alone: inputs q, k, v, a, beta, decay; state S and, optionally, z.

    See chunk.driver.Cell. Without `a` the write direction is the key. beta and decay have a last dimension of 1.
    """

    output_like = 2
    refresh_beat = None
    beat = None

    def __init__(self, settings: MemorySettings):
        """Remember the scalars."""
        self.settings = settings
        self.may_be_minus_infinity: Sequence[int] = (1, 5) if settings.feature_map == "elu1" else (5,)

    def forward(self, inputs: Inputs, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See Cell."""
        q, k, v, a, beta, decay = inputs
        tokens = Tokens.of(q, k, v, beta, decay, context.valid, self.settings)
        return forward(tokens, tokens.keys.y if a is None else a, state, self.settings)

    def backward(
        self, inputs: Inputs, starts: Tensors, context: Context, do: Tensor, dstate: Tensors
    ) -> tuple[Inputs, Tensors]:
        """See Cell."""
        q, k, v, a, beta, decay = inputs
        tokens = Tokens.of(q, k, v, beta, decay, context.valid, self.settings)
        g, dstate = backward(tokens, tokens.keys.y if a is None else a, starts, do, dstate, self.settings)
        dk = tokens.keys.backward(g.dK + g.da if a is None else g.dK, g.dF)
        return (g.dq, dk, g.dv, None if a is None else g.da, g.dbeta, g.ddecay), dstate


class Tokens(NamedTuple):
    """What a segment writes and reads, beside the write directions: [M, n, *]."""

    queries: Features
    scale: float
    keys: Features
    v: Tensor
    beta: Tensor | None
    decay: Decay | None

    @classmethod
    def of(
        cls,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        beta: Tensor | None,
        decay: Tensor | None,
        valid: Tensor | None,
        settings: MemorySettings,
    ) -> "Tokens":
        """From raw inputs; `valid` says which tokens exist."""
        queries = Features(q, settings.feature_map, settings.normalize_query)
        keys = Features(k, settings.feature_map, settings.normalize_key, valid)
        scale = settings.scale_of(q.shape[-1])
        return cls(queries, scale, keys, v, beta, None if decay is None else Decay(decay))

    @property
    def Q(self) -> Tensor:
        """The queries that S is read with."""
        return self.queries.y * self.scale if self.scale != 1 else self.queries.y

    def written(self, a: Tensor) -> Tensor:
        """What S is written along: a times the write strength."""
        return a if self.beta is None else self.beta * a

    def rule(self, settings: MemorySettings) -> Rule:
        """The rule that writes S."""
        if self.decay is not None:
            return Decayed(self.decay, settings.decay_first, settings.error)
        return Delta() if settings.error else Sum()


class TokenGradients(NamedTuple):
    """Gradients of the raw q and v, of unit keys K and key features F, of a, beta and decay."""

    dq: Tensor
    dK: Tensor
    dF: Tensor | float
    dv: Tensor
    da: Tensor
    dbeta: Tensor | None
    ddecay: Tensor | None


def forward(tokens: Tokens, a: Tensor, state: Tensors, settings: MemorySettings) -> tuple[Tensor, Tensors, Tensors]:
    """(outputs [M, n, Dv], state before each chunk, state after the last), written along a [M, n, D]."""
    S, *z = state
    Q, F, decay = tokens.Q, tokens.keys.F, tokens.decay
    read, S0, S = tokens.rule(settings).forward(Q, tokens.keys.y, tokens.v, tokens.written(a), S)
    if not z:
        return read, (S0,), (S,)
    if decay is None:
        z0, z_final = normalizer_scan(F, z[0])
    else:
        z0, z_final = decayed_scan(decay.since[:, -1], (decay.to_end * F).sum(1), z[0])
    return _normalizer(Q, F, z0, settings, decay).divide(read), (S0, z0), (S, z_final)


def backward(
    tokens: Tokens, a: Tensor, starts: Tensors, do: Tensor, dstate: Tensors, settings: MemorySettings
) -> tuple[TokenGradients, Tensors]:
    """(gradients of what a segment writes and reads, gradients of the state before its first chunk)."""
    S0, *z0 = starts
    dS, *dz = dstate
    Q, F, decay = tokens.Q, tokens.keys.F, tokens.decay
    normalizer = _normalizer(Q, F, z0[0], settings, decay) if z0 else None
    dread = do if normalizer is None else normalizer.divide(do)
    g = tokens.rule(settings).backward(Q, tokens.keys.y, tokens.v, tokens.written(a), S0, dread, dS)
    dF: Tensor | float = 0.0
    dQ, ddecay = g.dQ, g.ddecay
    if normalizer is not None:
        through = normalizer.backward(dread, g.read, dz[0])
        dQ, dF, dz = dQ + through.dQ, through.dF, [through.dz]
        ddecay = None if ddecay is None or through.ddecay is None else ddecay + through.ddecay
    dbeta = None if tokens.beta is None else dot(g.da, a)
    da = g.da if tokens.beta is None else tokens.beta * g.da
    dK = torch.zeros_like(da) if g.dK is None else g.dK
    return TokenGradients(tokens.queries.backward(dQ * tokens.scale), dK, dF, g.dV, da, dbeta, ddecay), (g.dS, *dz)


def _normalizer(
    Q: Tensor, F: Tensor, z0: Tensor, settings: MemorySettings, decay: Decay | None
) -> "Normalizer | DecayedNormalizer":
    if decay is None:
        return Normalizer(Q, F, z0, settings)
    return DecayedNormalizer(Q, F, z0, settings, decay)


def normalizer_scan(F: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """(z before each chunk [M, D], z after the last [N, D]) from z [N, D] before the first and features F [M, n, D]."""
    total = torch.cat((z[None], by_chunk(F.sum(1), z.shape[0]))).cumsum(0)  # in float64, as z is
    return total[:-1].flatten(0, 1), total[-1]


class Normalizer:
    """The denominators of a segment: o_t = S_t q_t / max(q_t . z_t, eps), where z_t is the running sum of key features.

    With `settings.normalizer` False it changes nothing; z is still summed.
    """

    def __init__(self, Q: Tensor, F: Tensor, z0: Tensor, settings: MemorySettings):
        """Compute all denominators D [M, n, 1] from Q, F [M, n, D] and z0 [M, D], which is z before each chunk."""
        self.Q, self.eps, self.on = Q, settings.eps, settings.normalizer
        if self.on:
            self.z = F.cumsum(1).add_(z0[:, None])
            self.D = (Q * self.z).sum(-1, keepdim=True)
            self.inverse = 1 / self.D.clamp(min=self.eps)

    def divide(self, x: Tensor) -> Tensor:
        """Outputs from reads S_t q_t. Also gradients of reads from gradients of outputs."""
        return x * self.inverse if self.on else x

    def backward(self, dread: Tensor, read: Tensor, dz: Tensor) -> Through:
        """Adjoint of the denominators. dz [N, D] is the gradient of z after the last chunk."""
        if not self.on:
            return Through(0.0, dz.to(self.Q.dtype).repeat(self.Q.shape[0] // dz.shape[0], 1)[:, None], dz)
        dD = torch.where(self.eps <= self.D, -(dread * read).sum(-1, keepdim=True) * self.inverse, 0)
        dz_t = dD * self.Q  # gradient of the z that each token reads
        later = torch.cat((by_chunk(dz_t.sum(1), dz.shape[0]), dz[None]))  # summed over each chunk and all later ones
        later = later.flip(0).cumsum(0).flip(0)
        dF = dz_t.flip(1).cumsum(1).flip(1).add_(later[1:].flatten(0, 1)[:, None])
        return Through(dD * self.z, dF, later[0])
