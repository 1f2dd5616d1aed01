"""The chunk form of `directions`: n Sherman-Morrison steps as one Cholesky factorisation (docs/math.md, section 3).

Let r count the refreshes in the chunk before a token, and r' those up to and including it. Then

    W = U A0 + eta r U          row t is (A0 + eta r I) u_t
    L L^T = I + U W^T           only the lower triangle is read: entry (t, s) is u_t . w_s for s <= t
    Z = L^-1 W                  row t is A_{t-1} u_t / sqrt(delta_t)
    P = K A0 + eta r' K - tril(K Z^T) Z         row t is A_t k_t
    A1 = A0 + eta r'_n I - Z^T Z

Shapes: U, K, W, Z, P [M, n, D], A0 [M, D, D], L [M, n, n], where M = G N: chunk 0 of all N heads, then chunk 1, and so
on.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from varla.ops.algebra import by_chunk, dot, eye_like, solve_lower, symmetric
from varla.ops.chunk.driver import Context, Inputs, Refresh, Tensors
from varla.ops.chunk.op import ChunkOperator
from varla.ops.custom_op import Arguments
from varla.ops.directions.gain import Gain
from varla.ops.directions.settings import DirectionSettings
from varla.ops.features import Features, unit, unit_backward


class DirectionOperator(ChunkOperator):
    """A ChunkOperator whose chunks are short enough to keep the digits of A. The first of its settings are ours."""

    def tokens_in_chunk(self, call: Arguments, state: Sequence[Any], chunk_size: int) -> int:
        """See ChunkOperator."""
        A, strength = state[self.state.index("A")], call.inputs[self.inputs.index("strength?")]
        return min(chunk_size, call.settings[0].longest_chunk(A.shape[-1], A.dtype, strength))


class DirectionCell:
    """The chunk form of `directions` alone: inputs k, u, strength; state A. See chunk.driver.Cell."""

    output_like = 0
    may_be_minus_infinity: Sequence[int] = ()
    beat: int | None = None

    def __init__(self, settings: DirectionSettings):
        """Remember the scalars."""
        self.settings, self.refresh_beat = settings, settings.refresh_beat

    def forward(self, inputs: Inputs, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See Cell."""
        k, u, strength = inputs
        a, A0, A = forward(self.keys(k, context).y, u, strength, state[0], self.settings, context.refresh)
        return a, (A0,), (A,)

    def backward(
        self, inputs: Inputs, starts: Tensors, context: Context, do: Tensor, dstate: Tensors
    ) -> tuple[Inputs, Tensors]:
        """See Cell."""
        k, u, strength = inputs
        keys = self.keys(k, context)
        found = Recomputed(keys.y, u, strength, starts[0], self.settings, context.refresh).backward(do, dstate[0])
        return (keys.backward(found.dK), found.du, found.dstrength), (found.dA,)

    def keys(self, k: Tensor, context: Context) -> Features:
        """The keys that A is applied to, from raw k."""
        return Features(k, self.settings.feature_map, self.settings.normalize_key, context.valid)


def forward(
    K: Tensor, u: Tensor, strength: Tensor | None, A: Tensor, settings: DirectionSettings, refresh: Refresh | None
) -> tuple[Tensor, Tensor, Tensor]:
    """(a [M, n, D], A before each chunk [M, D, D], A after the last) from keys K, raw u [M, n, D] and A [N, D, D]."""
    A = symmetric(A)
    if settings.update_penalty:
        A0, Z, A = scan(unit(u)[0] * settings.lengths_of_u(strength, u.shape[-1]), A, refresh)
    else:
        A0, Z = A.repeat(K.shape[0] // A.shape[0], 1, 1), None
    return Gain(settings.gain, apply_A(K, A0, Z, refresh), K).a, A0, A


class DirectionGradients(NamedTuple):
    """Gradients of unit keys K, raw u, the strengths (None without), and A before the first chunk."""

    dK: Tensor
    du: Tensor
    dstrength: Tensor | None
    dA: Tensor


class Recomputed:
    """Recomputes the write directions a of a segment from A before each chunk, for the backward."""

    def __init__(
        self,
        K: Tensor,
        u: Tensor,
        strength: Tensor | None,
        A0: Tensor,
        settings: DirectionSettings,
        refresh: Refresh | None,
    ):
        """K, u [M, n, D] and strength [M, n, 1] as for `forward`; A0 [M, D, D] is A before each chunk."""
        self.K, self.strength, self.A0, self.refresh = K, strength, A0, refresh
        self.penalty = Penalty(u, strength, settings)
        self.U = self.penalty.U
        self.parts = None
        if settings.update_penalty:
            drift = None if refresh is None else refresh.before * self.U
            self.parts = factor(self.U, A0, drift, eye_like(u, u.shape[1]))
        self.gain = Gain(settings.gain, apply_A(K, A0, self.parts.Z if self.parts else None, refresh), K)
        self.a = self.gain.a

    def backward(self, da: Tensor, dA: Tensor) -> DirectionGradients:
        """The gradients, from da [M, n, D] and dA [N, D, D], the gradient of A after the last chunk."""
        dP, dK_gain = self.gain.backward(da)
        dA = symmetric(dA)
        if self.parts is None:
            dK, dA = backward_fixed(self.K, self.A0, dP, dA)
            still = None if self.strength is None else torch.zeros_like(self.strength)
            return DirectionGradients(dK + dK_gain, torch.zeros_like(self.U), still, dA)
        dU, dK, dA = backward(self.U, self.K, self.A0, self.parts, dP, dA, self.refresh)
        du, dstrength = self.penalty.backward(dU)
        return DirectionGradients(dK + dK_gain, du, dstrength, dA)


class Penalty:
    """U, the penalty directions: raw u [M, n, D], normalised, times their lengths. The rest is for the backward."""

    def __init__(self, u: Tensor, strength: Tensor | None, settings: DirectionSettings):
        """strength [M, n, 1] as for `lengths_of_u`."""
        self.strength, self.length = strength, settings.lengths_of_u(strength, u.shape[-1])
        self.unit_u, self.inverse = unit(u)
        self.U = self.unit_u * self.length

    def backward(self, dU: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gradients of raw u and of the strengths, from that of U."""
        if self.strength is None:
            return unit_backward(dU * self.length, self.unit_u, self.inverse), None
        # The strength is |u|^2, and its gradient that of |u| divided by 2 |u|. Where it is 0, u has no gradient.
        du = unit_backward(dU * (self.strength / self.length), self.unit_u, self.inverse)
        return du, dot(self.unit_u, dU) / (2 * self.length)


class Factor(NamedTuple):
    """W, L and Z of any number of chunks, as in the module's equations."""

    W: Tensor
    L: Tensor
    Z: Tensor


def factor(U: Tensor, A0: Tensor, drift: Tensor | None, eye: Tensor) -> Factor:
    """Factorise chunks from the A before each. `drift` is eta r U, or None without refresh; `eye` is n x n."""
    W = torch.bmm(U, A0) if drift is None else torch.baddbmm(drift, U, A0)
    gram = torch.baddbmm(eye, U, W.mT)
    L, info = torch.linalg.cholesky_ex(gram)
    if U.is_cuda and torch.cuda.is_current_stream_capturing():  # `info` cannot be read now: NaN marks a failure
        L = L.masked_fill((info != 0)[:, None, None], torch.nan)
    elif info.any():
        _refuse_indefinite(gram, info)
    return Factor(W, L, solve_lower(L, W))


def _refuse_indefinite(gram: Tensor, info: Tensor) -> None:
    """Raise if a factorisation failed on finite numbers. NaN or inf only spreads in its own row, without an error."""
    finite = torch.isfinite(gram).flatten(1).all(1)
    if (finite & (info != 0)).any():
        raise torch.linalg.LinAlgError(  # type: ignore[attr-defined]
            "A is not positive definite: I + U A U^T of a chunk has no Cholesky factor. Either initial_state.A was not "
            "symmetric positive definite, or A has become too ill-conditioned for its precision (in float32, beyond "
            "about 1e7): keep the refresh on, raise lambda0, or use float64 inputs."
        )


def scan(U: Tensor, A: Tensor, refresh: Refresh | None) -> tuple[Tensor, Tensor, Tensor]:
    """Carry A [N, D, D] through the chunks. Returns (A before each chunk, Z, A after the last)."""
    eye = eye_like(U, U.shape[1])
    N = A.shape[0]
    steps = by_chunk(U, N).unbind()
    drifts = [None] * len(steps) if refresh is None else by_chunk(refresh.before * U, N).unbind()
    totals = [None] * len(steps) if refresh is None else by_chunk(refresh.total, N).unbind()
    starts, Zs = [], []
    for step, drift, total in zip(steps, drifts, totals, strict=True):
        starts.append(A)
        Z = factor(step, A, drift, eye).Z
        Zs.append(Z)
        A = symmetric(torch.baddbmm(A, Z.mT, Z, alpha=-1))
        if total is not None:
            A.diagonal(dim1=-2, dim2=-1).add_(total)
    return torch.cat(starts), torch.cat(Zs), A


def apply_A(X: Tensor, A0: Tensor, Z: Tensor | None, refresh: Refresh | None) -> Tensor:
    """Row t is A_t x_t, for any X [M, n, D]. Z is None if A is fixed."""
    Y = torch.bmm(X, A0)
    if Z is None:
        return Y
    if refresh is not None:
        Y.addcmul_(X, refresh.until)
    return Y.baddbmm_(torch.bmm(X, Z.mT).tril_(), Z, alpha=-1)


def backward(
    U: Tensor, K: Tensor, A0: Tensor, parts: Factor, dP: Tensor, Lam: Tensor, refresh: Refresh | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Adjoint of P and A1 (docs/math.md, section 5). Lam [N, D, D]: symmetric gradient of A after the last chunk.

    Returns (dU, dK, gradient of A before the first chunk).
    """
    adjoint = Adjoint(U, K, A0, parts, dP)
    after, Lam = congruence_scan(adjoint.Pi, adjoint.own, Lam)
    dU, dK = adjoint.gradients(after, refresh)
    return dU, dK, Lam


class Adjoint:
    """What the gradient of chunks needs, all at once. Before a chunk, Lam is Pi^T Lam Pi + own.

    Pi [M, D, D] is the product of I - z u^T / delta over a chunk, and own [M, D, D] is sym(Phi(dP)^T Phi(K)).
    """

    def __init__(self, U: Tensor, K: Tensor, A0: Tensor, parts: Factor, dP: Tensor):
        """U, K, dP [M, n, D], A0 [M, D, D] before each chunk, and its factorisation."""
        self.U, self.K, self.A0, self.parts, self.dP = U, K, A0, parts, dP
        L, Z = parts.L, parts.Z
        self.J = solve_lower(L, eye_like(L, L.shape[-1]).expand_as(L))
        Y = torch.bmm(self.J, U)
        self.C_K, self.C_P = torch.bmm(K, Z.mT).tril_(), torch.bmm(dP, Z.mT).tril_()
        self.Pi = torch.baddbmm(eye_like(U, U.shape[-1]), Z.mT, Y, alpha=-1)
        Phi_P, Phi_K = torch.baddbmm(dP, self.C_P, Y, alpha=-1), torch.baddbmm(K, self.C_K, Y, alpha=-1)
        self.own = symmetric(torch.bmm(Phi_P.mT, Phi_K))

    def gradients(self, after: Tensor, refresh: Refresh | None = None) -> tuple[Tensor, Tensor]:
        """(dU, dK), from Lam after each chunk [M, D, D]."""
        (W, _, Z), J, U, dP = self.parts, self.J, self.U, self.dP
        # From P and A1 to Z, then through Z = L^-1 W and the factorisation to W and U.
        dK = apply_A(dP, self.A0, Z, refresh)
        dZ = torch.bmm(self.C_K.mT, dP).baddbmm_(self.C_P.mT, self.K).baddbmm_(Z, after, alpha=2).neg_()
        B = torch.bmm(dZ, Z.mT).tril_()
        B.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        B = symmetric(torch.bmm(J.mT, torch.bmm(B, J))).mul_(2).tril_()
        B.diagonal(dim1=-2, dim2=-1).mul_(0.5)  # now minus the gradient of the lower triangle of L L^T
        dW = torch.bmm(J.mT, dZ).baddbmm_(B.mT, U, alpha=-1)
        dU = torch.bmm(dW, self.A0).baddbmm_(B, W, alpha=-1)
        if refresh is not None:
            dU.addcmul_(dW, refresh.before)
        return dU, dK


def congruence_scan(Pi: Tensor, own: Tensor, Lam: Tensor) -> tuple[Tensor, Tensor]:
    """Lam <- Pi_g^T Lam Pi_g + own_g from the last chunk to the first. Pi, own [M, D, D], Lam [N, D, D].

    Returns (Lam after each chunk [M, D, D], Lam before the first).
    """
    N = Lam.shape[0]
    after = []
    for Pi_g, own_g in zip(*(reversed(by_chunk(x, N).unbind()) for x in (Pi, own)), strict=True):
        after.append(Lam)
        Lam = symmetric(torch.baddbmm(own_g, Pi_g.mT, torch.bmm(Lam, Pi_g)))
    return torch.cat(after[::-1]), Lam


def backward_fixed(K: Tensor, A0: Tensor, dP: Tensor, dA: Tensor) -> tuple[Tensor, Tensor]:
    """Adjoint of P = K A for a fixed A: (dK, gradient of A)."""
    own = by_chunk(torch.bmm(dP.mT, K), dA.shape[0]).sum(0)
    return torch.bmm(dP, A0), dA + symmetric(own)
