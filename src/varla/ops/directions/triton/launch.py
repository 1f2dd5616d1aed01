"""Launches the kernels of `directions` in order, and holds the buffers between them.

They are in walk.py, inverse.py and refresh_backward.py.

The forward carries A through each sequence from its beginning, or through all spans in parallel. Spans in parallel need
A before every span first. Without refresh it comes from inverses of prefix sums, with refresh from the map that each
span applies to A. The backward always runs all spans in parallel.

Forgetting at the beat (directions/fading.py) changes those prefix sums alone, because spans end at beats. All sequences
must begin at a beat.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor

from varla.ops.directions.gain import Gain
from varla.ops.directions.settings import DirectionSettings
from varla.ops.directions.triton import inverse, refresh_backward, walk
from varla.ops.features import Features
from varla.ops.triton.launcher import Launcher
from varla.ops.triton.plan import CHUNK, GRADIENT_SPAN, parts

INT32_MAX = 2**31 - 1
FEW_HEADS = 48  # heads of all sequences together. With more, walking each sequence from its beginning is as fast


class Penalty(NamedTuple):
    """Penalty directions u [tokens, H, D] and their strengths [tokens, H, 1], or the gradients of both."""

    u: Tensor
    strength: Tensor


class Kept(NamedTuple):
    """What the forward keeps for the backward, beside a."""

    gain: Tensor  # [tokens, H]: the factor from A k to a
    A: Tensor  # [spans, H, D, D]: A before every span
    J: Tensor  # [tokens, H, 16]: L^-1 of every step of the walk
    Y: Tensor  # [spans, H, D, D] with forget, else empty: A^-1 - lambda0 I before every span
    log: Tensor  # [spans, H] with forget, else empty: the sum of forget in every span


@dataclass(frozen=True)
class DirectionLauncher(Launcher):
    """One call of `directions`."""

    inputs, state, output_like = "k u strength? forget?", "A f?", 0

    settings: DirectionSettings

    @classmethod
    def spans(cls, tokens: int, heads: int, given: Sequence[bool], *settings: Any) -> tuple[int, int]:
        """See Launcher. With forget, which is the last input, all spans are alike and end at beats."""
        if not given[-1]:
            return super().spans(tokens, heads, given, *settings)
        span = gcd(settings[0].beat, GRADIENT_SPAN)
        return span, span

    @property
    def constants(self) -> tuple[Any, ...]:
        """See Launcher."""
        return *self._switches.values(), self.settings.gain, self.settings.normalize_key, self._gradient_span

    @staticmethod
    def buffers(inputs: Sequence[Any], chunks: int, spans: int, settings: DirectionSettings) -> list[Tensor]:
        """See Launcher and `Kept`."""
        k, forget = inputs[0], inputs[-1]
        tokens, (H, D) = k.shape[0] * k.shape[1], k.shape[2:]
        faded = spans if forget is not None else 0
        kept = Kept(
            gain=k.new_empty(tokens, H, dtype=torch.float32),
            A=k.new_empty(spans, H, D, D, dtype=torch.float32),
            J=k.new_empty(tokens, H, walk.STEP.value, dtype=torch.float32),
            Y=k.new_empty(faded, H, D, D, dtype=torch.float32),
            log=k.new_empty(faded, H, dtype=torch.float32),
        )
        return list(kept)

    @staticmethod
    def also_kept(state: Sequence[Any], results: Sequence[Tensor]) -> list[Tensor]:
        """The initial A, a, and the final A."""
        return [state[0], *results[:2]]

    def run(self, x: Sequence[Any], state: Sequence[Any], t: Tensor, kept: list[Tensor]) -> Sequence[Tensor]:
        """See Launcher."""
        k, u, strength, forget = x
        a = torch.empty_like(k, dtype=self.precision.buffer)
        return a, *self.forward(k, Penalty(u, strength), forget, state[0], t, a, Kept(*kept))

    def run_backward(
        self, x: Sequence[Any], t: Tensor, kept: Sequence[Tensor], do: Tensor, dfinal: Sequence[Tensor]
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        """See Launcher."""
        k, u, strength, _ = x
        *buffers, A, a, final = kept
        held, a = Kept(*buffers), a.reshape(k.shape).to(self.precision.buffer)
        keys = Features(k.float(), self.settings.feature_map, self.settings.normalize_key)
        dP, dK = Gain.of(self.settings.gain, a.float(), held.gain[..., None], keys.y).backward(do.float())
        dk = keys.backward(dK * torch.ones_like(keys.y)).to(a.dtype)
        # Rows beyond the end of a short chunk hold other tokens; no kernel reads them.
        rows = self.plan.chunks[:, :1] + torch.arange(CHUNK, device=k.device)
        dP = dP[rows.clamp(max=len(dP) - 1).long()].transpose(1, 2).contiguous()  # [chunks, H, CHUNK, D]
        penalty = Penalty(u, strength)
        (du, dstrength), dforget, dstate = self.backward(k, penalty, A.contiguous(), t, a, held, final, dP, dk, dfinal)
        return (dk, du, dstrength, dforget), dstate

    def forward(
        self, k: Tensor, u: Penalty, forget: Tensor, A: Tensor, t: Tensor, a: Tensor, kept: Kept
    ) -> list[Tensor]:
        """Fill a and `kept`, and return A after the last token, with forget also f.

        Raw k, u [tokens, H, D], forget [tokens, H, 1], A [N, H, D, D], t [N].
        """
        s, plan, final = self.shape, self.plan, torch.empty_like(A)
        f = self._logs(forget, kept.log) if self._forgets else []
        if not self._serial and self._forgets:
            self._starts_faded(u, A, f, kept)
        elif not self._serial:
            (self._starts if self.settings.refresh_beat is None else self._starts_refreshed)(u, A, t, kept.A)
        spans, start = (plan.sequences, A) if self._serial else (plan.spans, kept.A)
        self.launch(
            walk.forward_walk, (len(spans) * s.H,),
            k, *u, start, t, spans, kept.A, final, a, kept.gain, kept.J, plan.span_first,
            A.new_empty(len(spans) * s.H, 256),  # for algebra.cholesky_inverse
            s.H, s.D, *self._scalars, plan.span if self._serial else 0,
            **self._walk, STRENGTH=self._strong, GAIN=self.settings.gain, EXACT=self.precision.exact, WARPS=s.warps,
        )  # fmt: skip
        return [self._unless_empty(final, A) if plan.empty else final, *f]

    def backward(
        self, k: Tensor, u: Penalty, A: Tensor, t: Tensor, a: Tensor, kept: Kept, final: Tensor, dP: Tensor,
        dk: Tensor, dfinal: Sequence[Tensor],
    ) -> tuple[Penalty, Tensor | None, list[Tensor]]:  # fmt: skip
        """The gradients of u, forget, and the initial A and f. Adds to dk the gradient of the keys through a.

        dP [chunks, H, CHUNK, D] float32 is the gradient of A k; it is overwritten. `final` is A after the last token;
        dfinal are the gradients of the results of `forward`.
        """
        s, plan, (dA, *df), dforget = self.shape, self.plan, dfinal, None
        refresh = self.settings.refresh_beat is not None
        G, Z, Y, K = (torch.empty_like(a) if refresh else dP for _ in range(4))
        self.launch(
            walk.backward_walk, (len(plan.spans) * s.H,),
            k, *u, kept.gain, dP, dk, G, Z, Y, kept.J, K, kept.A, t, plan.spans, plan.chunk_first, s.H, s.D,
            *self._scalars, **self._walk, STRENGTH=self._strong,
        )  # fmt: skip
        if refresh:
            initial = torch.empty_like(dA)
            self.launch(
                refresh_backward.gradient_scan, (len(plan.sequences) * s.H,),
                Z, Y, G, K, dA, initial, plan.sequences, s.H, s.D, BD=s.BD, DOT=self.precision.dot, num_warps=s.warps,
            )  # fmt: skip
            du = self._factors_backward(k, u, t, kept, dP, K, Z, Y, G)
        else:
            du, dforget, initial = self._information_backward(k, u, A, a, final, dP, dA, df, kept)
        dstate = [self._unless_empty(initial, dA) if plan.empty else initial, *map(torch.zeros_like, df)]
        return du, dforget, dstate

    def _unless_empty(self, x: Tensor, untouched: Tensor) -> Tensor:
        """x [N, *] with the rows of empty sequences copied from `untouched`: the kernels made x symmetric."""
        x[list(self.plan.empty)] = untouched[list(self.plan.empty)]
        return x

    @cached_property
    def _serial(self) -> bool:
        """Whether A is carried through each sequence from its beginning, and not through all spans in parallel.

        Spans in parallel need A before every span. Without refresh that takes sums and inverses. With refresh it takes
        a second walk, which is worth it only if there are too few heads to fill the GPU.
        """
        if self.plan.one_span or not self.settings.update_penalty:
            return True
        sequences = len(self.plan.sequences)
        few = sequences * self.shape.H <= FEW_HEADS and len(self.plan.spans) >= 4 * sequences
        return self.settings.refresh_beat is not None and not few

    @cached_property
    def _unit(self) -> bool:
        """Whether the kernels normalise keys. Gain "unit" divides A k by its length, so it does not need unit keys."""
        return self.settings.normalize_key and self.settings.gain != "unit"

    @cached_property
    def _scalars(self) -> tuple[float, int, float]:
        """|u|, and the period and size of the refresh."""
        period, eta = self.settings.refresh_beat or (INT32_MAX, 0.0)
        return self.settings.length_of_u(self.shape.D), min(period, INT32_MAX), eta

    def _starts(self, u: Penalty, A: Tensor, t: Tensor, out: Tensor) -> None:
        """A before every span, without refresh: the inverse of a prefix sum of u u^T."""
        self._square_sum(u, out, unit=True)
        self.running_sum(out, self._inverse(A), torch.empty_like(A), self.plan.span_first, reverse=False)
        self._invert_spans(out, out, A, 0.0)

    def _starts_faded(self, u: Penalty, A: Tensor, f: Sequence[Tensor], kept: Kept) -> None:
        """A before every span, with forget. Fills kept.Y and kept.A, and f [N, H]."""
        s, plan, prior, blocks = self.shape, self.plan, self.settings.lambda0, self._parts
        self._square_sum(u, kept.Y, unit=True)
        self.launch(
            inverse.faded_sum, (len(plan.sequences) * s.H * blocks,),
            kept.Y, kept.log, self._inverse(A), *f, plan.span_first, s.H, s.D, prior, self._spans_of_a_beat, blocks,
            num_warps=4,
        )  # fmt: skip
        self._invert_spans(kept.Y, kept.A, A, prior)

    def _logs(self, forget: Tensor, log: Tensor) -> list[Tensor]:
        """Fill log [spans, H]. Returns [f], which is right already if every sequence is one span."""
        s, plan = self.shape, self.plan
        self.launch(
            inverse.log_sum, (len(plan.spans) * s.H,), forget, plan.spans, log, s.H, BLOCK=GRADIENT_SPAN, num_warps=4
        )
        return [log[: len(plan.sequences)].clone()]

    def _invert_spans(self, x: Tensor, out: Tensor, A: Tensor, prior: float) -> None:
        s, plan, programs = self.shape, self.plan, len(self.plan.spans) * self.shape.H
        self.launch(
            inverse.invert_spans, (programs,),
            x, out, A, plan.spans, A.new_empty(programs, 16, s.BD + 16), s.H, s.D, prior,
            BD=s.BD, WALK=self.precision.walk, WARPS=s.warps, num_warps=s.warps,
        )  # fmt: skip

    def _starts_refreshed(self, u: Penalty, A: Tensor, t: Tensor, out: Tensor) -> None:
        """A before every span, with refresh: compute the maps of all spans in parallel, then apply them in order."""
        s, plan = self.shape, self.plan
        C, F, J = (torch.empty_like(out) for _ in range(3))
        V = torch.empty_like(u.u, dtype=torch.float32)
        self.launch(
            walk.element_walk, (len(plan.spans) * s.H,),
            *u, t, plan.spans, out.new_empty(len(plan.spans) * s.H, 256), C, F, V, s.H, s.D, *self._scalars,
            BD=s.BD, STRENGTH=self._strong, WALK=self.precision.walk, EXACT=self.precision.exact, WARPS=s.warps,
            num_warps=s.warps,
        )  # fmt: skip
        self._square_sum(Penalty(V, V), J, unit=False)
        programs = len(plan.sequences) * s.H
        self.launch(
            inverse.compose, (programs,),
            A, C, F, J, out, plan.span_first, out.new_empty(programs, 16, s.BD + 16), s.H, s.D,
            BD=s.BD, WALK="tf32x3", WARPS=s.warps, num_warps=s.warps,
        )  # fmt: skip

    def _square_sum(self, u: Penalty, out: Tensor, unit: bool) -> None:
        s, plan = self.shape, self.plan
        self.launch(
            inverse.square_sum, (len(plan.spans) * s.H,),
            *u, plan.spans, out, s.H, s.D, self._scalars[0],
            BD=s.BD, BLOCK=32, UNIT=unit, STRENGTH=unit and self._strong, WALK=self.precision.walk, num_warps=s.warps,
        )  # fmt: skip

    def _inverse(self, x: Tensor) -> Tensor:
        s, out, programs = self.shape, torch.empty_like(x), len(self.plan.sequences) * self.shape.H
        self.launch(
            inverse.invert, (programs,),
            x, out, x.new_empty(programs, 16, s.BD + 16), s.D,
            BD=s.BD, WALK=self.precision.walk, WARPS=s.warps, num_warps=s.warps,
        )  # fmt: skip
        return out

    def _through_inverse(self, x: Tensor, y: Tensor) -> Tensor:
        """-x sym(y) x: for x = m^-1, the gradient of m from the gradient y of x, or the reverse."""
        s, out = self.shape, torch.empty_like(x)
        self.launch(
            inverse.sandwich, (len(self.plan.sequences) * s.H, parts(s.D, 16)),
            x, y, out, s.D, BD=s.BD, BLOCK=16, WALK=self.precision.walk, num_warps=s.warps,
        )  # fmt: skip
        return out

    def _information_backward(
        self, k: Tensor, u: Penalty, A: Tensor, a: Tensor, final: Tensor, G: Tensor, dA: Tensor,
        df: Sequence[Tensor], kept: Kept,
    ) -> tuple[Penalty, Tensor | None, Tensor]:  # fmt: skip
        """(gradients of u, forget, the initial A) without refresh: that of A^-1 is a sum over later tokens."""
        s, plan, fixed = self.shape, self.plan, not self.settings.update_penalty
        sums = A.new_empty(len(plan.gradient_spans), s.H, s.D, s.D)
        total = torch.empty_like(A)
        self.launch(
            inverse.outer_sum, (len(plan.gradient_spans) * s.H,),
            G, a, k, plan.gradient_spans, plan.chunk_first, sums, s.H, s.D,
            BD=s.BD, BLOCK=32, FIXED=fixed, MAP=self.settings.feature_map, UNIT=self._unit,
            DOT=self.precision.dot, num_warps=s.warps, num_stages=1,
        )  # fmt: skip
        if fixed:
            self.running_sum(sums, dA, total, plan.gradient_first, reverse=True)
            return Penalty(torch.zeros_like(u.u), torch.zeros_like(u.strength)), None, (total + total.mT) / 2
        last, dlog = self._through_inverse(final, dA), sums
        if self._forgets:
            dlog = self._faded_gradient(sums, last, df, total, kept)
        else:
            self.running_sum(sums, last, total, plan.gradient_first, reverse=True)
        du = Penalty(torch.empty_like(u.u), torch.empty_like(u.strength))
        dforget = u.u.new_empty(*u.u.shape[:2], 1, dtype=torch.float32) if self._forgets else None
        self.launch(
            inverse.direction_backward, (len(plan.chunks) * s.H,),
            *u, a, G, sums, dlog, *du, sums if dforget is None else dforget, plan.chunks, plan.chunk_position,
            plan.chunk_first, plan.gradient_first, s.H, s.D, self._scalars[0],
            BD=s.BD, STRENGTH=self._strong, FORGET=self._forgets, CHUNK=CHUNK, SPAN=self._gradient_span,
            DOT=self.precision.dot, num_warps=s.finish_warps, num_stages=1,
        )  # fmt: skip
        return du, dforget, self._through_inverse(self._inverse(A), total)

    def _faded_gradient(self, x: Tensor, last: Tensor, df: Sequence[Tensor], total: Tensor, kept: Kept) -> Tensor:
        """The gradients of kept.log. x and total become as `running_sum` makes them, with the fading's backward."""
        s, plan, blocks = self.shape, self.plan, self._parts
        slopes = x.new_empty(len(plan.spans), s.H, blocks)
        self.launch(
            inverse.faded_gradient, (len(plan.sequences) * s.H * blocks,),
            x, kept.Y, kept.log, last, *df, total, slopes, plan.span_first, s.H, s.D, self._spans_of_a_beat, blocks,
            num_warps=4,
        )  # fmt: skip
        return slopes.sum(-1)

    def _factors_backward(
        self, k: Tensor, u: Penalty, t: Tensor, kept: Kept, dP: Tensor, V: Tensor, Z: Tensor, X: Tensor, rest: Tensor
    ) -> Penalty:
        """The gradients of u with refresh, through the factors of every step. X and rest are overwritten."""
        s, plan = self.shape, self.plan
        self.launch(
            refresh_backward.factor_backward, (len(plan.chunks) * s.H,),
            k, *u, dP, V, Z, kept.J, X, rest, plan.chunks, plan.chunk_position, t, s.H, s.D, *self._scalars,
            BD=s.BD, STRENGTH=self._strong, STEPS=4, MAP=self.settings.feature_map, UNIT=self._unit,
            DOT=self.precision.times, num_warps=4,
        )  # fmt: skip
        du = Penalty(X if X.dtype == u.u.dtype else torch.empty_like(u.u), torch.empty_like(u.strength))
        self.launch(
            refresh_backward.direction_walk, (len(plan.spans) * s.H,),
            *u, X, rest, Z, *du, kept.A, t, plan.spans, s.H, s.D, *self._scalars,
            BD=s.BD, STRENGTH=self._strong, DOT=self.precision.times, WALK=self.precision.walk,
            num_warps=4 if s.half else s.warps,
        )  # fmt: skip
        return du

    @cached_property
    def _walk(self) -> dict[str, Any]:
        """The compile-time constants of a walk."""
        s, p = self.shape, self.precision
        return {
            "BD": s.BD, **self._switches, "UNIT": self._unit, "PAST": p.dot, "WALK": p.walk, "num_warps": s.warps,
            "num_stages": 1,
        }  # fmt: skip

    @cached_property
    def _strong(self) -> bool:
        return "strength" in self.given

    @cached_property
    def _forgets(self) -> bool:
        return "forget" in self.given

    @cached_property
    def _gradient_span(self) -> int:
        return gcd(self.settings.beat, GRADIENT_SPAN) if self._forgets else GRADIENT_SPAN

    @cached_property
    def _parts(self) -> int:
        """Programs for one matrix of the faded sums."""
        return parts(self.shape.D**2, inverse.PART.value)

    @cached_property
    def _spans_of_a_beat(self) -> int:
        return self.settings.beat // self._gradient_span

    @cached_property
    def _switches(self) -> dict[str, Any]:
        s = self.settings
        return {"MAP": s.feature_map, "UPDATE": s.update_penalty, "REFRESH": s.refresh_beat is not None}
