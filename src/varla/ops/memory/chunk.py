"""The chunk form of `memory`: S and z over n tokens, read by q."""

from collections.abc import Sequence

import torch
from torch import Tensor

from varla.ops.algebra import by_chunk
from varla.ops.chunk.driver import Context, Inputs, Tensors
from varla.ops.features import Features
from varla.ops.memory.chunk_decay import Decayed
from varla.ops.memory.chunk_rules import Delta, Gradients, Rule, Sum
from varla.ops.memory.settings import MemorySettings


class MemoryCell:
    """The chunk form of `memory` alone: inputs q, k, v, a, beta, log_gate; state S and, optionally, z.

    See chunk.driver.Cell. Without `a` the write direction is the key. beta and log_gate have a last dimension of 1.
    """

    output_like = 2
    refresh_beat = None

    def __init__(self, settings: MemorySettings):
        """Remember the scalars."""
        self.settings = settings
        self.may_be_minus_infinity: Sequence[int] = (1, 5) if settings.feature_map == "elu1" else (5,)

    def forward(self, inputs: Inputs, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See Cell."""
        s = self.settings
        q, k, v, a, beta, log_gate = inputs
        Q = Features(q, s.feature_map, s.normalize_query).y * s.scale_of(q.shape[-1])
        keys = Features(k, s.feature_map, s.normalize_key, context.valid)
        a = keys.y if a is None else a
        return forward(Q, keys, v, a if beta is None else beta * a, log_gate, state, s)

    def backward(
        self, inputs: Inputs, starts: Tensors, context: Context, do: Tensor, dstate: Tensors
    ) -> tuple[Inputs, Tensors]:
        """See Cell."""
        s = self.settings
        q, k, v, a, beta, log_gate = inputs
        scale = s.scale_of(q.shape[-1])
        queries = Features(q, s.feature_map, s.normalize_query)
        keys = Features(k, s.feature_map, s.normalize_key, context.valid)
        along = keys.y if a is None else a
        written = along if beta is None else beta * along
        grads, dF, dstate = backward(queries.y * scale, keys, v, written, log_gate, starts, do, dstate, s)
        dbeta = None if beta is None else (grads.da * along).sum(-1, keepdim=True)
        da = grads.da if beta is None else beta * grads.da
        dK = torch.zeros_like(da) if grads.dK is None else grads.dK
        dk = keys.backward(dK + da if a is None else dK, dF)
        dq = queries.backward(grads.dQ * scale)
        return (dq, dk, grads.dV, None if a is None else da, dbeta, grads.dgate), dstate


def rule_for(settings: MemorySettings, log_gate: Tensor | None) -> Rule:
    """The rule that writes S."""
    if log_gate is not None:
        return Decayed(log_gate)
    return Delta() if settings.error else Sum()


def forward(
    Q: Tensor, keys: Features, v: Tensor, a: Tensor, log_gate: Tensor | None, state: Tensors, settings: MemorySettings
) -> tuple[Tensor, Tensors, Tensors]:
    """(outputs [M, n, Dv], state before each chunk, state after the last) from Q, a [M, n, D] and v [M, n, Dv]."""
    S, *z = state
    read, S0, S = rule_for(settings, log_gate).forward(Q, keys.y, v, a, S)
    if not z:
        return read, (S0,), (S,)
    z0, z_final = normalizer_scan(keys.F, z[0])
    o = Normalizer(Q, keys.F, z0, settings).divide(read)
    return o, (S0, z0), (S, z_final)


def backward(
    Q: Tensor,
    keys: Features,
    v: Tensor,
    a: Tensor,
    log_gate: Tensor | None,
    starts: Tensors,
    do: Tensor,
    dstate: Tensors,
    settings: MemorySettings,
) -> tuple[Gradients, Tensor | float, Tensors]:
    """(gradients of the rule's arguments, gradient of the key features through z, gradients of the initial state)."""
    S0, *z0 = starts
    dS, *dz = dstate
    rule = rule_for(settings, log_gate)
    if not z0:
        grads = rule.backward(Q, keys.y, v, a, S0, do, dS)
        return grads, 0.0, (grads.dS,)
    normalizer = Normalizer(Q, keys.F, z0[0], settings)
    dread = normalizer.divide(do)
    grads = rule.backward(Q, keys.y, v, a, S0, dread, dS)
    dQ, dF, dz_first = normalizer.backward(dread, grads.read, dz[0])
    return grads._replace(dQ=grads.dQ + dQ), dF, (grads.dS, dz_first)


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

    def backward(self, dread: Tensor, read: Tensor, dz: Tensor) -> tuple[Tensor | float, Tensor, Tensor]:
        """Adjoint of the denominators. dz [N, D] is the gradient of z after the last chunk.

        Returns (dQ, dF, gradient of z before the first chunk).
        """
        if not self.on:
            return 0.0, dz.to(self.Q.dtype).repeat(self.Q.shape[0] // dz.shape[0], 1)[:, None], dz
        dD = torch.where(self.eps <= self.D, -(dread * read).sum(-1, keepdim=True) * self.inverse, 0)
        dz_t = dD * self.Q  # gradient of the z that each token reads
        later = torch.cat((by_chunk(dz_t.sum(1), dz.shape[0]), dz[None]))  # summed over each chunk and all later ones
        later = later.flip(0).cumsum(0).flip(0)
        dF = dz_t.flip(1).cumsum(1).flip(1).add_(later[1:].flatten(0, 1)[:, None])
        return dD * self.z, dF, later[0]
