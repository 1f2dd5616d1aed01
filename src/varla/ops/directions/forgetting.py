"""The chunk form of `directions` with forgetting (docs/math.md, section 9).

    before a token that is due    A^-1 <- A^-1 + lambda0 (1 - C) I,   C <- 1
    for every token               A^-1 <- c A^-1 + w u u^T,   C <- c C

Let s_t be the sum of log c since the start of a stretch of tokens without a beat. Then exp(-s_t) A_t^-1 does not
forget, and its penalty directions are exp(-s_t / 2) sqrt(w_t) u_t. With these as U, W, L and Z as in chunk.py, and

    P = exp(-s) (K A0 - tril(K Z^T) Z),   A1 = exp(-s_n) (A0 - Z^T Z).

A chunk is not longer than the beat, so each of its rows has at most one beat. A chunk is computed in two stages. Each
begins by giving the prior back in the rows that are due:

    stage 1    the tokens before a beat inside the chunk. A beat at the first token of the chunk is at its start
    stage 2    the tokens from a beat inside the chunk on; left out if no row has one

A token of the other stage has u = 0 and c = 1, and changes nothing. Shapes are as in chunk.py; log c is [M, n, 1], f =
log C is [M].

With forget_at="beat", a stage forgets nothing (s is 0), and begins with A^-1 <- lambda0 I + C (A^-1 - lambda0 I).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from varla.ops.algebra import add_to_inverse, by_chunk, dot, eye_like, faded_inverse, solve_lower, symmetric
from varla.ops.checks import readable
from varla.ops.chunk.driver import Context, Inputs, Tensors
from varla.ops.custom_op import Arguments
from varla.ops.directions.chunk import Adjoint, DirectionCell, DirectionOperator, Penalty, apply_A, factor
from varla.ops.directions.gain import Gain
from varla.ops.directions.settings import DirectionSettings


class ForgettingOperator(DirectionOperator):
    """A DirectionOperator whose chunks are not longer than the beat."""

    def tokens_in_chunk(self, call: Arguments, state: Sequence[Any], chunk_size: int) -> int:
        """See ChunkOperator."""
        return min(super().tokens_in_chunk(call, state, chunk_size), call.settings[0].beat)


class ForgettingCell(DirectionCell):
    """`directions` with forgetting alone: inputs k, u, strength, forget; state A, f. See chunk.driver.Cell."""

    def __init__(self, settings: DirectionSettings):
        """Remember the scalars. There is no refresh: `check_forget` refuses it."""
        super().__init__(settings)
        self.beat = settings.beat
        if settings.forget_at == "beat":
            self.may_be_minus_infinity = *self.may_be_minus_infinity, 3

    def forward(self, inputs: Inputs, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See Cell."""
        k, u, strength, forget = inputs
        tokens = Tokens(self.keys(k, context).y, u, strength, forget, due_of(context))
        return forward(tokens, state, self.settings)

    def backward(
        self, inputs: Inputs, starts: Tensors, context: Context, do: Tensor, dstate: Tensors
    ) -> tuple[Inputs, Tensors]:
        """See Cell."""
        k, u, strength, forget = inputs
        keys = self.keys(k, context)
        tokens = Tokens(keys.y, u, strength, forget, due_of(context))
        g, dstate = Recomputed(tokens, starts, self.settings).backward(do, dstate)
        return (keys.backward(g.dK), g.du, g.dstrength, g.dforget), dstate


class Tokens(NamedTuple):
    """Keys K, raw u [M, n, D], strengths or None, logarithms of c, and which tokens are due [M, n, 1]."""

    K: Tensor
    u: Tensor
    strength: Tensor | None
    forget: Tensor
    due: Tensor


class TokenGradients(NamedTuple):
    """Gradients of Tokens."""

    dK: Tensor
    du: Tensor
    dstrength: Tensor | None
    dforget: Tensor


def due_of(context: Context) -> Tensor:
    """The tokens that are due; every cell with a beat has them."""
    assert context.due is not None
    return context.due


def forward(tokens: Tokens, state: Tensors, settings: DirectionSettings) -> tuple[Tensor, Tensors, Tensors]:
    """(a [M, n, D], A and f before each chunk, A and f after the last) from A [N, D, D] and f [N]."""
    K, u, strength, forget, due = tokens
    A, f = symmetric(state[0]), state[1]
    if settings.forget_at == "token" and readable(forget):  # before A could lose its digits
        settings.check_prior(shares(forget, due, f), strength, K.shape[-1])
    U = Penalty(u, strength, settings).U
    starts, found = [], []
    chunks = zip(*(by_chunk(x, A.shape[0]).unbind() for x in (K, U, forget, due)), strict=True)
    for K_g, U_g, log_g, due_g in chunks:
        starts.append((A, f))
        stages = Stages(K_g, U_g, log_g, due_g, A, f, settings)
        found.append(stages.P)
        A, f = stages.last.end
    A0, f0 = (torch.cat(x) for x in zip(*starts, strict=True))
    return Gain(settings.gain, torch.cat(found), K).a, (A0, f0), (A, f)


def shares(forget: Tensor, due: Tensor, f: Tensor) -> Tensor:
    """log C after each token [M, n, 1], from f [N] before the first: sums of log c that start again at every beat."""
    (M, n, _), N = forget.shape, f.shape[0]
    log, begins = (x.view(-1, N, n).transpose(0, 1).flatten(1) for x in (forget, due))  # each head's tokens in order
    total = log.cumsum(1)
    # The sum before the last beat, or -f before the first. It never grows, so the least so far is the last.
    before = torch.where(begins, total - log, -f[:, None]).cummin(1)[0]
    return (total - before).view(N, -1, n).transpose(0, 1).reshape(M, n, 1)


class Recomputed:
    """Recomputes the write directions a of a segment from A and f before each chunk, for the backward."""

    def __init__(self, tokens: Tokens, starts: Tensors, settings: DirectionSettings):
        """All chunks at once: starts are A [M, D, D] and f [M] before each chunk."""
        (K, u, strength, forget, due), (A0, f0) = tokens, starts
        self.penalty = Penalty(u, strength, settings)
        self.stages = Stages(K, self.penalty.U, forget, due, A0, f0, settings)
        self.gain = Gain(settings.gain, self.stages.P, K)
        self.a = self.gain.a

    def backward(self, da: Tensor, dstate: Tensors) -> tuple[TokenGradients, Tensors]:
        """(gradients of the tokens, of A and f before the first chunk), from da and those of A and f after the last."""
        dP, dK_gain = self.gain.backward(da)
        (dU, dK, dforget), dstate = self.stages.backward(dP, symmetric(dstate[0]), dstate[1])
        du, dstrength = self.penalty.backward(dU)
        return TokenGradients(dK + dK_gain, du, dstrength, dforget), dstate


class Stages:
    """The stages of any number of chunks, from A and f before each.

    P [M, n, D] has rows A_t k_t; `last` is the stage that a chunk ends with.
    """

    def __init__(
        self, K: Tensor, U: Tensor, log: Tensor, due: Tensor, A: Tensor, f: Tensor, settings: DirectionSettings
    ):
        """U, K [M, n, D], due and log c [M, n, 1], A [M, D, D], f [M]."""
        self.K = K
        first, inside = due[:, 0, 0], due[:, 1:, 0]
        if not some(inside):
            one = self.last = Stage(K, U, log, first, A, f, settings)
            self.parts: list[tuple[Stage, Tensor | None]] = [(one, None)]
            self.P = one.P
            return
        late = torch.cat((torch.zeros_like(due[:, :1]), due[:, 1:]), 1).cummax(1)[0]
        one = Stage(K, U.masked_fill(late, 0), log.masked_fill(late, 0), first, A, f, settings)
        two = Stage(K, U.masked_fill(~late, 0), log.masked_fill(~late, 0), inside.any(1), *one.end, settings)
        self.last, self.parts = two, [(one, ~late), (two, late)]
        self.P = torch.where(late, two.P, one.P)

    def backward(self, dP: Tensor, Lam: Tensor, df: Tensor) -> tuple[Tensors, Tensors]:
        """((dU, dK, gradient of log c), gradients of A and f before the first chunk).

        Lam [N, D, D] (symmetric) and df [N] are the gradients of A and f after the last chunk.
        """
        passes = [Pass(stage, self.K, dP if own is None else torch.where(own, dP, 0)) for stage, own in self.parts]
        N = Lam.shape[0]
        for g in reversed(range(dP.shape[0] // N)):
            for each in reversed(passes):
                Lam, df = each.step(slice(g * N, (g + 1) * N), Lam, df)
        sums: list[Tensor] = []
        for each, (_, own) in zip(passes, self.parts, strict=True):
            dU, dK, dlog = each.gradients()
            if own is not None:
                dU, dlog = torch.where(own, dU, 0), torch.where(own, dlog, 0)
            sums = [x + y for x, y in zip(sums, (dU, dK, dlog), strict=True)] if sums else [dU, dK, dlog]
        return sums, (Lam, df)


class Stage:
    """The beat in rows that are due, and then n tokens without one. `fades`: whether A^-1 forgets at the beat alone."""

    def __init__(
        self, K: Tensor, U: Tensor, log: Tensor, due: Tensor, A: Tensor, f: Tensor, settings: DirectionSettings
    ):
        """U, K [M, n, D], log c [M, n, 1]; A [M, D, D], f and due [M] before the stage."""
        self.due, self.f, self.lambda0, self.fades = due, f, settings.lambda0, settings.forget_at == "beat"
        self.L: Tensor | None = None  # L L^T = I + m A: A^-1 gained m I
        self.R: Tensor | None = None  # A became R A
        if self.fades and some(due):
            A, self.R = faded_inverse(A, self.share, self.lambda0)
        elif some(due):
            A, self.L = add_to_inverse(A, torch.where(due, -self.lambda0 * torch.expm1(f), 0))
        self.A0, s = A, torch.zeros_like(log) if self.fades else log.cumsum(1)
        self.grown, self.root = torch.exp(-s), torch.exp(-s / 2)
        self.U = U * self.root
        self.parts = factor(self.U, A, None, eye_like(U, U.shape[1]))
        self.P = apply_A(K, A, self.parts.Z, None).mul_(self.grown)
        A1 = symmetric(torch.baddbmm(A, self.parts.Z.mT, self.parts.Z, alpha=-1))
        self.end = A1 * self.grown[:, -1:], torch.where(due, 0, f) + log.sum((1, 2))

    @property
    def share(self) -> Tensor:
        """C [M] in rows that are due, else 1."""
        return torch.where(self.due, self.f.exp(), 1)


class Pass:
    """The backward of one stage of all chunks: `step` from the last chunk to the first, then `gradients`."""

    def __init__(self, stage: Stage, K: Tensor, dP: Tensor):
        """dP [M, n, D] is zero for tokens of other stages."""
        self.stage, self.dP = stage, dP
        self.adjoint = Adjoint(stage.U, K, stage.A0, stage.parts, dP * stage.grown)
        self.R = stage.R
        if stage.L is not None:  # (I + m A)^-1
            inverse = solve_lower(stage.L, eye_like(K, K.shape[-1]).expand_as(stage.L))
            self.R = torch.bmm(inverse.mT, inverse)
        self.after: list[tuple[Tensor, Tensor]] = []

    def step(self, here: slice, Lam: Tensor, df: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of A [N, D, D] and f [N] before the stage, from those after it, in the chunk `here`."""
        self.after.append((Lam, df))
        stage, Pi = self.stage, self.adjoint.Pi[here]
        Lam = stage.grown[here, -1:] * Lam
        Lam = symmetric(torch.baddbmm(self.adjoint.own[here], Pi.mT, torch.bmm(Lam, Pi)))
        if self.R is None:
            return Lam, df
        A, R = stage.A0[here], self.R[here]
        if stage.fades:
            # (lambda0 I + C (A^-1 - lambda0 I))^-1: by A^-1 as below, and C times; by C, A' (A^-1 - lambda0 I) A'.
            C = stage.share[here]
            dC = -(torch.bmm(Lam, A) * (R - stage.lambda0 * A)).sum((1, 2))
            df = torch.where(stage.due[here], C * dC, df)
            return C[:, None, None] * symmetric(torch.bmm(R, torch.bmm(Lam, R))), df
        # (A^-1 + m I)^-1: its derivative by A is the congruence with R, by m minus its square.
        dm = -(torch.bmm(Lam, A) * A).sum((1, 2))
        df = torch.where(stage.due[here], -stage.lambda0 * stage.f[here].exp() * dm, df)
        return symmetric(torch.bmm(R, torch.bmm(Lam, R))), df

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """(dU, dK, gradient of log c), for tokens of this stage."""
        stage = self.stage
        Lam, df = (torch.cat(x) for x in zip(*reversed(self.after), strict=True))
        dU, dK = self.adjoint.gradients(stage.grown[:, -1:] * Lam)
        if stage.fades:  # C alone depends on log c
            return dU, dK, df[:, None, None].expand_as(stage.grown)
        ds = -(dot(self.dP, stage.P) + dot(dU, stage.U) / 2)
        ds[:, -1, 0] += df - (Lam * stage.end[0]).sum((1, 2))
        return dU * stage.root, dK, ds.flip(1).cumsum(1).flip(1)


def some(x: Tensor) -> bool:
    """Whether any element is true. True during the capture of a CUDA graph, which cannot know."""
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return True
    return bool(x.any())


forgetting_chunk = ForgettingOperator(
    "directions_forgetting_chunk", ForgettingCell, "k u strength? forget", "A f", DirectionSettings
)
