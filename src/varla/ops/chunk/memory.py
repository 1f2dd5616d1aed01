"""The S part of a chunk: S <- S (I - k a^T) + v a^T over n tokens, read by q (docs/math.md, section 4).

    T = I + tril(K a^T, -1),   [Tv Tk] = T^-1 [V K]
    S1 = S0 F + G,   F = I - Tk^T a,   G = Tv^T a       the whole chunk as one affine map
    E  = Tv - Tk S0^T                                   row t is the residual e_t
    N  = Q S0^T + tril(Q a^T) E                         row t is S_t q_t

VLA writes along a = A k / |A k|, the delta rule along a = beta k. Shapes: Q, K, a [M, n, D], V, E [M, n, Dv],
S0 [M, Dv, D], where M = G N: chunk 0 of all N heads, then chunk 1, ...
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from varla.ops.chunk.algebra import by_chunk, eye_like, solve_lower, solve_lower_transposed


@dataclass(frozen=True)
class Chunks:
    """What a segment's chunks look like from outside: their affine maps, and what the residuals need."""

    T: Tensor  # [M, n, n] strictly lower part of the unit triangular T
    Tv: Tensor  # [M, n, Dv]
    Tk: Tensor  # [M, n, D]
    F: Tensor  # [M, D, D]


def prepare(K: Tensor, V: Tensor, a: Tensor) -> Chunks:
    """Solve the triangular system of every chunk."""
    T = torch.bmm(K, a.mT).tril_(-1)
    solved = solve_lower(T, torch.cat((V, K), -1), unit=True)
    Tv, Tk = solved[..., : V.shape[-1]], solved[..., V.shape[-1] :]
    return Chunks(T, Tv, Tk, torch.baddbmm(eye_like(K, K.shape[-1]), Tk.mT, a, alpha=-1))


def forward(Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From S [N, Dv, D]: (reads S_t q_t [M, n, Dv], S before each chunk [M, Dv, D], S after the last)."""
    chunks = prepare(K, V, a)
    S0, S = affine_scan(chunks.F, torch.bmm(chunks.Tv.mT, a), S)
    E = torch.baddbmm(chunks.Tv, chunks.Tk, S0.mT, alpha=-1)
    read = torch.bmm(Q, S0.mT).baddbmm_(torch.bmm(Q, a.mT).tril_(), E)
    return read, S0, S


def affine_scan(factor: Tensor | None, add: Tensor, S: Tensor, reverse: bool = False) -> tuple[Tensor, Tensor]:
    """S <- S factor_g + add_g over the chunks, or from the last to the first. factor None: the identity.

    factor [M, D, D], add [M, Dv, D], S [N, Dv, D]. Returns (S that each chunk was entered with, S at the end).
    """
    steps = by_chunk(add, S.shape[0]).unbind()
    factors = [None] * len(steps) if factor is None else by_chunk(factor, S.shape[0]).unbind()
    entered = []
    for g in reversed(range(len(steps))) if reverse else range(len(steps)):
        entered.append(S)
        step, by = steps[g], factors[g]
        S = step + S if by is None else torch.baddbmm(step, S, by)
    return torch.cat(entered[::-1] if reverse else entered), S


def backward(
    Q: Tensor, K: Tensor, V: Tensor, a: Tensor, S0: Tensor, dread: Tensor, dS: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Adjoint of `forward`, from dread [M, n, Dv] and dS [N, Dv, D], the gradient of S after the last chunk.

    Returns (dQ, dK, dV, da, gradient of S before the first chunk, the reads recomputed).
    """
    chunks = prepare(K, V, a)
    E = torch.baddbmm(chunks.Tv, chunks.Tk, S0.mT, alpha=-1)
    C = torch.bmm(Q, a.mT).tril_()

    # dS walks back through the affine maps; what each chunk adds of its own needs no dS.
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
    read = torch.bmm(Q, S0.mT).baddbmm_(C, E)
    return dQ, dK, dV, da, dS, read
