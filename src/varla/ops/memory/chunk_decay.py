"""The delta rule with a decay d per token, over chunks of n tokens, read by q.

    first       S <- d S,  S <- S + (v - S k) a^T           decay_first: the prediction reads the decayed S
    after       S <- d S + (v - S k) a^T

Let c be the running sum of log d inside the chunk (c_0 = 0). Decays between tokens are exponentials of c_t - c_s, the
sum of log d between the two, and at most 1 for d <= 1. Let p = t if the decay comes first, else t - 1: what the
prediction of token t reads has decayed until token p.

    since the start  rho_t = exp(c_p), sigma_t = exp(c_t);   to the end  tau_s = exp(c_n - c_s)
    T = I + tril(Gamma o K a^T, -1),  Gamma_ts = exp(c_p - c_s);   [Tv Tk] = T^-1 [V rho K]
    E  = Tv - Tk S0^T,   S1 = S0 (sigma_n I - Tk^T tau a) + Tv^T tau a
    N  = sigma Q S0^T + tril(Gamma' o Q a^T) E,   Gamma'_ts = exp(c_t - c_s)

A decay at token t acts on what passes it: on products of tokens i >= t and j < t, on reads of S0 by tokens i >= t, on
what tokens j < t write into S1, and on what S0 leaves in S1. Its gradient is the sum of these terms, each times its own
gradient (`passing`). (The sum of q . dq + k . dk - a . da over later tokens is equal, but it is a small difference of
large terms where decays are strong.)

Shapes are as in chunk_rules.py; log d is [M, n, 1]. A token that does not exist has a zero key and log decay 0, and
changes nothing.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from varla.ops.algebra import by_chunk, dot, eye_like, solve_lower, solve_lower_transposed
from varla.ops.memory.chunk_rules import Gradients, Through, affine_scan
from varla.ops.memory.settings import MemorySettings


class Decay:
    """The decays of a segment's chunks, from their logarithms [M, n, 1]."""

    def __init__(self, log: Tensor):
        """Sum the logarithms."""
        # Each column of the matrix has a running sum of its own, so that the sums hold no decays before token s. As a
        # difference of two sums from the chunk's start, c_t - c_s would keep the rounding errors of closed gates.
        n = log.shape[1]
        past = torch.ones(n, n, dtype=torch.bool, device=log.device).tril()
        sums = torch.where(past.tril(-1), log, 0).cumsum(1)  # c_t - c_s
        self.log = log
        self.between = sums.masked_fill_(~past, -torch.inf).exp_()  # Gamma' [M, n, n]
        self.since, self.to_end = log.cumsum(1).exp(), self.between[:, -1, :, None]  # sigma, tau [M, n, 1]

    def passing(self, pairs: Tensor, reads: Tensor, writes: Tensor, whole: Tensor) -> Tensor:
        """Gradient of the logarithms [M, n, 1], from the terms that decays act on times their gradients, as above.

        pairs [M, i, j]: products of tokens i and j. reads [M, i, 1]: of the state before the chunk. writes [M, j, 1]:
        to the state after it. whole [M, 1]: the state before the chunk, decayed to its end. Below `closed` a decay
        counts as zero, and has no gradient.
        """
        before = pad(pairs.cumsum(2)[..., :-1], (1, 0))  # [M, i, t]: the sum over j < t
        total = before.tril().sum(1)[..., None] + reads.flip(1).cumsum(1).flip(1) + whole[:, None]
        total[:, 1:] += writes.cumsum(1)[:, :-1]
        return torch.where(self.log < closed(self.log.dtype), 0, total)


class Decayed:
    """See chunk_rules.Rule."""

    def __init__(self, decay: Decay, first: bool, error: bool):
        """`first`: decay before the prediction. Without `error`, v is written as it is."""
        self.decay, self.first, self.error = decay, first, error

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See Rule."""
        c = self._chunks(Q, K, V, a)
        S0, S = affine_scan(c.F, torch.bmm(c.Tv.mT, c.a_end), S)
        return torch.bmm(c.sigma * Q, S0.mT).baddbmm_(c.C, c.residuals(S0)), S0, S

    def backward(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S0: Tensor, dread: Tensor, dS: Tensor) -> Gradients:
        """See Rule."""
        c = self._chunks(Q, K, V, a)
        E = c.residuals(S0)
        direct = torch.bmm(c.C.mT, dread)
        own = torch.bmm(dread.mT, c.sigma * Q).baddbmm_(direct.mT, c.Tk, alpha=-1)
        after, dS = affine_scan(c.F.mT, own, dS, reverse=True)

        dV = solve_lower_transposed(c.T, direct.baddbmm_(c.a_end, after.mT), unit=True)
        X = torch.bmm(dread, E.mT) * self.decay.between  # gradient of Q a^T
        Y = torch.bmm(dV, E.mT).mul_(c.gamma).neg_()  # gradient of K a^T
        old_q, old_k, new = torch.bmm(dread, S0), torch.bmm(dV, S0).neg_(), torch.bmm(E, after)
        dQ = torch.bmm(X, a).addcmul_(c.sigma, old_q)
        dK = torch.bmm(Y, a).addcmul_(c.rho, old_k)
        da = torch.bmm(X.mT, Q).baddbmm_(Y.mT, c.K).addcmul_(self.decay.to_end, new)

        pairs, reads = Y * c.Ka, c.rho * dot(c.K, old_k)
        if not self.first:  # the prediction of token t reads what has not decayed at t yet
            pairs, reads = (pad(x[:, 1:], (0, 0, 0, 1)) for x in (pairs, reads))
        pairs, reads = pairs + X * c.Qa, reads + c.sigma * dot(Q, old_q)
        whole = c.sigma[:, -1] * (after * S0).sum((1, 2))[:, None]
        ddecay = self.decay.passing(pairs, reads, dot(c.a_end, new), whole)
        read = torch.bmm(c.sigma * Q, S0.mT).baddbmm_(c.C, E)
        return Gradients(dQ, dK if self.error else None, dV, da, ddecay, dS, read)

    def _chunks(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor) -> "DecayedChunks":
        return DecayedChunks(Q, K if self.error else torch.zeros_like(K), V, a, self.decay, self.first)


def closed(dtype: torch.dtype) -> float:
    """The log decay below which S counts as forgotten, and the decay has no gradient."""
    return math.log(torch.finfo(dtype).tiny)


class DecayedChunks:
    """The quantities of a segment's chunks that do not depend on S."""

    def __init__(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, decay: Decay, first: bool):
        """Solve the triangular systems."""
        self.K, self.sigma = K, decay.since
        self.gamma = decay.between.tril(-1) if first else pad(decay.between[:, :-1], (0, 0, 1, 0))
        self.rho = self.sigma if first else pad(self.sigma[:, :-1], (0, 0, 1, 0), value=1.0)
        self.Ka, self.Qa = torch.bmm(K, a.mT), torch.bmm(Q, a.mT)
        self.T = self.gamma * self.Ka
        self.C = decay.between * self.Qa
        solved = solve_lower(self.T, torch.cat((V, self.rho * K), -1), unit=True)
        self.Tv, self.Tk = solved[..., : V.shape[-1]], solved[..., V.shape[-1] :]
        self.a_end = decay.to_end * a
        whole = self.sigma[:, -1:] * eye_like(K, K.shape[-1])
        self.F = torch.baddbmm(whole, self.Tk.mT, self.a_end, alpha=-1)

    def residuals(self, S0: Tensor) -> Tensor:
        """E from the states before each chunk."""
        return torch.baddbmm(self.Tv, self.Tk, S0.mT, alpha=-1)


class DecayedNormalizer:
    """The denominators of a segment where z decays like S: z <- d z + f. See chunk.Normalizer."""

    def __init__(self, Q: Tensor, F: Tensor, z0: Tensor, settings: MemorySettings, decay: Decay):
        """Compute all denominators D [M, n, 1] from Q, F [M, n, D] and z0 [M, D], which is z before each chunk."""
        self.Q, self.F, self.decay = Q, F, decay
        self.eps, self.on = settings.eps, settings.normalizer
        self.z0 = z0.to(Q.dtype)[:, None]
        self.z = torch.baddbmm(decay.since * self.z0, decay.between, F)
        self.D = dot(Q, self.z)
        self.inverse = 1 / self.D.clamp(min=self.eps)

    def divide(self, x: Tensor) -> Tensor:
        """Outputs from reads S_t q_t. Also gradients of reads from gradients of outputs."""
        return x * self.inverse if self.on else x

    def backward(self, dread: Tensor, read: Tensor, dz: Tensor) -> Through:
        """Adjoint of the denominators. dz [N, D] is the gradient of z after the last chunk."""
        decay = self.decay
        dD = torch.where(self.eps <= self.D, -dot(dread, read) * self.inverse, 0) if self.on else self.D.new_zeros(1)
        dz_t = dD * self.Q  # gradient of the z that each token reads
        after, dz = decayed_scan(decay.since[:, -1], (decay.since * dz_t).sum(1), dz, reverse=True)
        after = after.to(self.Q.dtype)[:, None]
        dF = torch.bmm(decay.between.mT, dz_t).addcmul_(decay.to_end, after)
        pairs, reads = decay.between * torch.bmm(dz_t, self.F.mT), decay.since * dot(dz_t, self.z0)
        whole = decay.since[:, -1] * dot(after, self.z0)[:, 0]
        ddecay = decay.passing(pairs, reads, decay.to_end * dot(self.F, after), whole)
        return Through(dD * self.z, dF, dz, ddecay)


def decayed_scan(factor: Tensor, add: Tensor, z: Tensor, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """z <- factor_g z + add_g over the chunks, in the dtype of z [N, D]. factor [M, 1], add [M, D].

    Returns (z before each chunk in that order [M, D], z at the end).
    """
    factors, adds = (by_chunk(x, z.shape[0]).to(z.dtype).unbind() for x in (factor, add))
    entered = []
    for g in reversed(range(len(adds))) if reverse else range(len(adds)):
        entered.append(z)
        z = torch.addcmul(adds[g], factors[g], z)
    return torch.cat(entered[::-1] if reverse else entered), z
