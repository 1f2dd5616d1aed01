"""The S part with a decay per token: S <- g S + (v - S k) k^T over n tokens, read by q.

With c the running sum of log g inside the chunk (c_0 = 0), decays between tokens are exponentials of differences of c,
none of them above 1 for g <= 1:

    since the start  rho_t = exp(c_{t-1}), sigma_t = exp(c_t);   to the end  tau_s = exp(c_n - c_s)
    T = I + tril(Gamma o K K^T, -1),  Gamma_ts = exp(c_{t-1} - c_s);   [Tv Tk] = T^-1 [V rho K]
    E  = Tv - Tk S0^T,   S1 = S0 (sigma_n I - Tk^T tau K) + Tv^T tau K
    N  = sigma Q S0^T + tril(Gamma' o Q K^T) E,   Gamma'_ts = exp(c_t - c_s)

Shapes as in `memory`; log g is [M, n, 1].
"""

import math

import torch
from torch import Tensor

from varla.ops.chunk.algebra import eye_like, solve_lower, solve_lower_transposed
from varla.ops.chunk.cells import Context, Keys, Tensors
from varla.ops.chunk.memory import affine_scan
from varla.ops.settings import DecayedDeltaRuleSettings


def closed(dtype: torch.dtype) -> float:
    """Below this a gate is zero in the given precision; sums of anything lower would only lose digits of the rest."""
    return math.log(torch.finfo(dtype).tiny)


class Chunks:
    """Everything about a segment's chunks that does not depend on S."""

    def __init__(self, Q: Tensor, K: Tensor, V: Tensor, log_gate: Tensor):
        """Solve the triangular systems."""
        log_gate = log_gate.clamp(min=closed(log_gate.dtype))
        until = log_gate.cumsum(1)  # c_t
        before = until - log_gate  # c_{t-1}
        self.rho, self.sigma, self.tau = before.exp(), until.exp(), (until[:, -1:] - until).exp()
        # Above the diagonal the differences are positive: mask before the exponential, or it overflows.
        strict = torch.ones(K.shape[1], K.shape[1], dtype=torch.bool, device=K.device).tril(-1)
        self.gamma = (before - until.mT).masked_fill_(~strict, -torch.inf).exp_()
        self.gamma_read = (until - until.mT).masked_fill_(strict.mT, -torch.inf).exp_()
        self.KK, self.QK = torch.bmm(K, K.mT), torch.bmm(Q, K.mT)
        self.T = self.gamma * self.KK
        self.C = self.gamma_read * self.QK
        solved = solve_lower(self.T, torch.cat((V, self.rho * K), -1), unit=True)
        self.Tv, self.Tk = solved[..., : V.shape[-1]], solved[..., V.shape[-1] :]
        self.K_end = self.tau * K
        decay = self.sigma[:, -1:] * eye_like(K, K.shape[-1])
        self.F = torch.baddbmm(decay, self.Tk.mT, self.K_end, alpha=-1)

    def residuals(self, S0: Tensor) -> Tensor:
        """E from the states before each chunk."""
        return torch.baddbmm(self.Tv, self.Tk, S0.mT, alpha=-1)


class DecayedDeltaCell:
    """Inputs q, k, v, log_gate (last dimension 1); state S."""

    def __init__(self, settings: DecayedDeltaRuleSettings):
        """Remember the scalars."""
        self.settings = settings

    def forward(self, inputs: Tensors, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See cells.Cell. A token that does not exist has a zero key and log gate 0: it changes nothing."""
        q, k, v, log_gate = inputs
        K = Keys(k, "identity", self.settings.normalize_key, context.valid).K
        chunks = Chunks(q, K, v, log_gate)
        S0, S = affine_scan(chunks.F, torch.bmm(chunks.Tv.mT, chunks.K_end), state[0])
        read = torch.bmm(chunks.sigma * q, S0.mT).baddbmm_(chunks.C, chunks.residuals(S0))
        return read, (S0,), (S,)

    def backward(
        self, inputs: Tensors, starts: Tensors, context: Context, dO: Tensor, dstate: Tensors
    ) -> tuple[Tensors, Tensors]:
        """See cells.Cell."""
        q, k, v, log_gate = inputs
        S0 = starts[0]
        keys = Keys(k, "identity", self.settings.normalize_key, context.valid)
        K = keys.K
        c = Chunks(q, K, v, log_gate)
        E = c.residuals(S0)
        direct = torch.bmm(c.C.mT, dO)
        own = torch.bmm(dO.mT, c.sigma * q).baddbmm_(direct.mT, c.Tk, alpha=-1)
        after, dS = affine_scan(c.F.mT, own, dstate[0], reverse=True)

        dV = solve_lower_transposed(c.T, direct.baddbmm_(c.K_end, after.mT), unit=True)
        X = torch.bmm(dO, E.mT) * c.gamma_read  # gradient of Q K^T
        Y = torch.bmm(dV, E.mT).mul_(c.gamma).neg_()  # gradient of K K^T
        dK_end, dK_start, dO_S0 = torch.bmm(E, after), torch.bmm(dV, S0).neg_(), torch.bmm(dO, S0)
        dQ = torch.bmm(X, K).addcmul_(c.sigma, dO_S0)
        dK = torch.bmm(X.mT, q).baddbmm_(Y, K).baddbmm_(Y.mT, K)
        dK.addcmul_(c.tau, dK_end).addcmul_(c.rho, dK_start)
        dgate = self._gate_gradient(q, K, c, X, Y, dK_end, dK_start, dO_S0, after, S0)
        dgate = torch.where(log_gate < closed(log_gate.dtype), 0, dgate)
        return (dQ, keys.backward(dK, 0.0), dV, dgate), (dS,)

    @staticmethod
    def _gate_gradient(
        q: Tensor,
        K: Tensor,
        c: Chunks,
        X: Tensor,
        Y: Tensor,
        dK_end: Tensor,
        dK_start: Tensor,
        dO_S0: Tensor,
        after: Tensor,
        S0: Tensor,
    ) -> Tensor:
        """Collect what reaches c_t (`until`) and c_{t-1} (`before`); both are running sums of log g."""
        read, write = X * c.QK, Y * c.KK
        end = c.tau * (dK_end * K).sum(-1, keepdim=True)
        until = read.sum(2, keepdim=True) - read.sum(1)[..., None] - write.sum(1)[..., None] - end
        until += c.sigma * (q * dO_S0).sum(-1, keepdim=True)
        until[:, -1:] += end.sum(1, keepdim=True)
        until[:, -1:] += c.sigma[:, -1:] * (after * S0).sum((1, 2))[:, None, None]
        before = write.sum(2, keepdim=True) + c.rho * (dK_start * K).sum(-1, keepdim=True)
        until[:, :-1] += before[:, 1:]  # the c before token t + 1 is the c after token t; before the first it is 0
        return until.flip(1).cumsum(1).flip(1)
