"""How a chunk writes and reads S, as matrix products: three rules. `chunk.rule_for` chooses one.

    Sum      S <- S + v a^T                         linear attention
    Delta    S <- S + (v - S k) a^T                 VLA, the delta rule (docs/math.md, section 4)
    Decayed  either of them with a decay of S       chunk_decay.py

The delta rule over n tokens, read by q:

    T = I + tril(K a^T, -1),   [Tv Tk] = T^-1 [V K]
    S1 = S0 F + G,   F = I - Tk^T a,   G = Tv^T a       the whole chunk as one affine map
    E  = Tv - Tk S0^T                                   row t is the residual e_t
    N  = Q S0^T + tril(Q a^T) E                         row t is S_t q_t

Shapes: Q, K, a [M, n, D], V, E [M, n, Dv], S0 [M, Dv, D], where M = G N: chunk 0 of all N heads, then chunk 1, and so
on.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from varla.ops.algebra import by_chunk, eye_like, solve_lower, solve_lower_transposed


class Gradients(NamedTuple):
    """Gradients of a rule's arguments, and the reads. `dK` is None if S is not read by keys, `ddecay` without decay."""

    dQ: Tensor
    dK: Tensor | None
    dV: Tensor
    da: Tensor
    ddecay: Tensor | None
    dS: Tensor
    read: Tensor


class Through(NamedTuple):
    """Gradients through the denominators: of Q, of key features F, of z before the first chunk, and of log decays."""

    dQ: Tensor | float
    dF: Tensor
    dz: Tensor
    ddecay: Tensor | None = None


class Rule(Protocol):
    """One segment of a rule, forward and backward."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(reads S_t q_t [M, n, Dv], S before each chunk [M, Dv, D], S after the last), from S [N, Dv, D]."""
        ...

    def backward(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S0: Tensor, dread: Tensor, dS: Tensor) -> Gradients:
        """Adjoint of `forward`, from dread [M, n, Dv] and dS [N, Dv, D], the gradient of S after the last chunk."""
        ...


class Sum:
    """S <- S + v a^T."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See Rule."""
        S0, S = affine_scan(None, V.mT @ a, S)
        return Q @ S0.mT + (Q @ a.mT).tril_() @ V, S0, S

    def backward(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S0: Tensor, dread: Tensor, dS: Tensor) -> Gradients:
        """See Rule."""
        C = (Q @ a.mT).tril_()
        after, dS = affine_scan(None, dread.mT @ Q, dS, reverse=True)
        X = (dread @ V.mT).tril_()
        dQ = dread @ S0 + X @ a
        dV = C.mT @ dread + a @ after.mT
        return Gradients(dQ, None, dV, X.mT @ Q + V @ after, None, dS, Q @ S0.mT + C @ V)


class Delta:
    """S <- S + (v - S k) a^T."""

    def forward(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See Rule."""
        chunks = Chunks.of(K, V, a)
        S0, S = affine_scan(chunks.F, torch.bmm(chunks.Tv.mT, a), S)
        read = torch.bmm(Q, S0.mT).baddbmm_(torch.bmm(Q, a.mT).tril_(), chunks.residuals(S0))
        return read, S0, S

    def backward(self, Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S0: Tensor, dread: Tensor, dS: Tensor) -> Gradients:
        """See Rule."""
        chunks = Chunks.of(K, V, a)
        E = chunks.residuals(S0)
        C = torch.bmm(Q, a.mT).tril_()

        # dS goes back through the affine maps. The part that a chunk adds (`own`) does not depend on dS.
        direct = torch.bmm(C.mT, dread)
        own = torch.bmm(dread.mT, Q).baddbmm_(direct.mT, chunks.Tk, alpha=-1)
        after, dS = affine_scan(chunks.F.mT, own, dS, reverse=True)

        dE = direct.baddbmm_(a, after.mT)
        dV = solve_lower_transposed(chunks.T, dE, unit=True)
        X = torch.bmm(dread, E.mT).tril_()
        Y = torch.bmm(dV, E.mT).tril_(-1)
        dQ = torch.bmm(dread, S0).baddbmm_(X, a)
        dK = torch.bmm(dV, S0).baddbmm_(Y, a).neg_()
        da = torch.bmm(X.mT, Q).baddbmm_(E, after).baddbmm_(Y.mT, K, alpha=-1)
        return Gradients(dQ, dK, dV, da, None, dS, torch.bmm(Q, S0.mT).baddbmm_(C, E))


@dataclass(frozen=True)
class Chunks:
    """The affine maps of a segment's chunks, and what the residuals E need."""

    T: Tensor  # [M, n, n] strictly lower part of the unit triangular T
    Tv: Tensor  # [M, n, Dv]
    Tk: Tensor  # [M, n, D]
    F: Tensor  # [M, D, D]

    @classmethod
    def of(cls, K: Tensor, V: Tensor, a: Tensor) -> "Chunks":
        """Solve the triangular system of every chunk."""
        T = torch.bmm(K, a.mT).tril_(-1)
        solved = solve_lower(T, torch.cat((V, K), -1), unit=True)
        Tv, Tk = solved[..., : V.shape[-1]], solved[..., V.shape[-1] :]
        return cls(T, Tv, Tk, torch.baddbmm(eye_like(K, K.shape[-1]), Tk.mT, a, alpha=-1))

    def residuals(self, S0: Tensor) -> Tensor:
        """E from the states before each chunk."""
        return torch.baddbmm(self.Tv, self.Tk, S0.mT, alpha=-1)


def affine_scan(factor: Tensor | None, add: Tensor, S: Tensor, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """S <- S factor_g + add_g over the chunks; with `reverse`, from the last to the first. factor None: the identity.

    factor [M, D, D], add [M, Dv, D], S [N, Dv, D]. Returns (S before each chunk in that order, S at the end).
    """
    steps = by_chunk(add, S.shape[0]).unbind()
    factors = [None] * len(steps) if factor is None else by_chunk(factor, S.shape[0]).unbind()
    entered = []
    for g in reversed(range(len(steps))) if reverse else range(len(steps)):
        entered.append(S)
        step, by = steps[g], factors[g]
        S = step + S if by is None else torch.baddbmm(step, S, by)
    return torch.cat(entered[::-1] if reverse else entered), S
