"""The delta rule with a decay per token: S <- g S + (v - S k) a^T over n tokens, read by q.

Let c be the running sum of log g inside the chunk (c_0 = 0). Decays between tokens are exponentials of c_t - c_s, the
sum of log g between the two, and at most 1 for g <= 1:

    since the start  rho_t = exp(c_{t-1}), sigma_t = exp(c_t);   to the end  tau_s = exp(c_n - c_s)
    T = I + tril(Gamma o K a^T, -1),  Gamma_ts = exp(c_{t-1} - c_s);   [Tv Tk] = T^-1 [V rho K]
    E  = Tv - Tk S0^T,   S1 = S0 (sigma_n I - Tk^T tau a) + Tv^T tau a
    N  = sigma Q S0^T + tril(Gamma' o Q a^T) E,   Gamma'_ts = exp(c_t - c_s)

Shapes are as in chunk_rules.py; log g is [M, n, 1]. A token that does not exist has a zero key and log gate 0, and
changes nothing.
"""

import math

import torch
from torch import Tensor

from varla.ops.algebra import eye_like, solve_lower, solve_lower_transposed
from varla.ops.memory.chunk_rules import Gradients, affine_scan


class Decayed:
    """See chunk_rules.Rule. `log_gate` [M, n, 1]: logarithms of the decays."""

    def __init__(self, log_gate: Tensor):
        """Remember the gates."""
        self.log_gate = log_gate

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See Rule."""
        c = DecayedChunks(Q, K, V, a, self.log_gate)
        S0, S = affine_scan(c.F, torch.bmm(c.Tv.mT, c.a_end), S)
        return torch.bmm(c.sigma * Q, S0.mT).baddbmm_(c.C, c.residuals(S0)), S0, S

    def backward(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S0: Tensor, dread: Tensor, dS: Tensor) -> Gradients:
        """See Rule."""
        c = DecayedChunks(Q, K, V, a, self.log_gate)
        E = c.residuals(S0)
        direct = torch.bmm(c.C.mT, dread)
        own = torch.bmm(dread.mT, c.sigma * Q).baddbmm_(direct.mT, c.Tk, alpha=-1)
        after, dS = affine_scan(c.F.mT, own, dS, reverse=True)

        dV = solve_lower_transposed(c.T, direct.baddbmm_(c.a_end, after.mT), unit=True)
        X = torch.bmm(dread, E.mT) * c.gamma_read  # gradient of Q a^T
        Y = torch.bmm(dV, E.mT).mul_(c.gamma).neg_()  # gradient of K a^T
        da_end, dK_start, dread_S0 = torch.bmm(E, after), torch.bmm(dV, S0).neg_(), torch.bmm(dread, S0)
        dQ = torch.bmm(X, a).addcmul_(c.sigma, dread_S0)
        dK = torch.bmm(Y, a).addcmul_(c.rho, dK_start)
        da = torch.bmm(X.mT, Q).baddbmm_(Y.mT, K).addcmul_(c.tau, da_end)

        # Gradients of c_t (`until`) and of c_{t-1} (`before`); both are running sums of log g.
        read, write = X * c.Qa, Y * c.Ka
        end = c.tau * (da_end * a).sum(-1, keepdim=True)
        until = read.sum(2, keepdim=True) - read.sum(1)[..., None] - write.sum(1)[..., None] - end
        until += c.sigma * (Q * dread_S0).sum(-1, keepdim=True)
        until[:, -1:] += end.sum(1, keepdim=True)
        until[:, -1:] += c.sigma[:, -1:] * (after * S0).sum((1, 2))[:, None, None]
        before = write.sum(2, keepdim=True) + c.rho * (dK_start * K).sum(-1, keepdim=True)
        until[:, :-1] += before[:, 1:]  # c before token t + 1 is c_t; before the first token it is 0
        dgate = torch.where(self.log_gate < closed(self.log_gate.dtype), 0, until.flip(1).cumsum(1).flip(1))
        return Gradients(dQ, dK, dV, da, dgate, dS, torch.bmm(c.sigma * Q, S0.mT).baddbmm_(c.C, E))


def closed(dtype: torch.dtype) -> float:
    """The log gate below which a gate counts as zero, and has no gradient."""
    return math.log(torch.finfo(dtype).tiny)


class DecayedChunks:
    """The quantities of a segment's chunks that do not depend on S."""

    def __init__(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, log_gate: Tensor):
        """Solve the triangular systems."""
        # Each column of the matrix has a running sum of its own, so that the sums hold no gates before token s. As a
        # difference of two sums from the chunk's start, c_t - c_s would keep the rounding errors of closed gates.
        n = K.shape[1]
        past = torch.ones(n, n, dtype=torch.bool, device=K.device).tril()
        between = torch.where(past.tril(-1), log_gate, 0).cumsum(1)  # c_t - c_s
        self.gamma_read = between.masked_fill_(~past, -torch.inf).exp_()
        self.gamma = torch.nn.functional.pad(self.gamma_read[:, :-1], (0, 0, 1, 0))
        self.sigma, self.tau = log_gate.cumsum(1).exp(), self.gamma_read[:, -1, :, None]
        self.rho = torch.nn.functional.pad(self.sigma[:, :-1], (0, 0, 1, 0), value=1.0)
        self.Ka, self.Qa = torch.bmm(K, a.mT), torch.bmm(Q, a.mT)
        self.T = self.gamma * self.Ka
        self.C = self.gamma_read * self.Qa
        solved = solve_lower(self.T, torch.cat((V, self.rho * K), -1), unit=True)
        self.Tv, self.Tk = solved[..., : V.shape[-1]], solved[..., V.shape[-1] :]
        self.a_end = self.tau * a
        decay = self.sigma[:, -1:] * eye_like(K, K.shape[-1])
        self.F = torch.baddbmm(decay, self.Tk.mT, self.a_end, alpha=-1)

    def residuals(self, S0: Tensor) -> Tensor:
        """E from the states before each chunk."""
        return torch.baddbmm(self.Tv, self.Tk, S0.mT, alpha=-1)
