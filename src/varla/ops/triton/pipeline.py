"""The host side: which kernels run in which order, and what passes between them.

Forward: A walks through each sequence (without refresh: through all spans at once, from inverses of prefix sums),
leaving the write directions a; then the S part (varla/ops/triton/s_part.py). Kept for the backward: a, its gains, the
keys' norms, the denominators, E, T^-1, W and S of every chunk, A at the start of every span, and the factors of every
step. Then backward: the S part, and the A part, on all spans at once.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from varla.ops.triton import information, penalty
from varla.ops.triton.configuration import Inputs, Kept, State
from varla.ops.triton.plan import CHUNK, SHORT, parts
from varla.ops.triton.s_part import SPart

HUGE = 2**31 - 1
FEW = 48  # heads, over all sequences: with more than that, walking each from its beginning is as fast as any other way


@dataclass(frozen=True)
class Pipeline(SPart):
    """One call of VLA."""

    def forward(self, x: Inputs, state: State, kept: Kept) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(o, S, A, z): outputs [tokens, H, DV] and the state after the last token. Fills `kept`."""
        A = self._unless_empty(self._directions(x, state, kept), state.A)
        o, S, z = self.write_and_read(x, kept, state.S, state.z)
        return o, S, A, z

    def backward(
        self, x: Inputs, state: State, kept: Kept, A: Tensor, do: Tensor, dS: Tensor, dA: Tensor, dz: Tensor
    ) -> tuple[Inputs, tuple[Tensor, Tensor, Tensor]]:
        """Gradients of the inputs, and of the initial S, A and z. `A` is what the forward returned."""
        g = self.back(x, kept, do, dS, dz, by_chunk=True)
        du, dA_initial = self._directions_backward(x, state, kept, g.da, g.dk, A, dA)
        inputs = Inputs(g.dq, g.dk.to(x.k.dtype), g.dv, du)
        return inputs, (g.dS, self._unless_empty(dA_initial, dA), g.dz)

    def rehearse(self, tokens: int, dtype: torch.dtype, device: torch.device, backward: bool) -> None:
        """See SPart."""
        x, state, kept = self._stand_ins(tokens, dtype, device)
        o, S, A, z = self.forward(x, state, kept)
        if backward:
            self.backward(x, state, kept, A, o, S, A, z)

    def _unless_empty(self, x: Tensor, untouched: Tensor) -> Tensor:
        """x [N, *], but for sequences without tokens what was handed in, to the last bit (x is made symmetric)."""
        if self.plan.empty:
            x[list(self.plan.empty)] = untouched[list(self.plan.empty)]
        return x

    # The A part.

    @property
    def _serial(self) -> bool:
        """Whether A is walked through each sequence from its beginning, or through all spans at once.

        At once takes their starts first: without refresh, sums and inverses; with it, a second walk, which pays only
        where there are too few heads to fill the GPU.
        """
        if self.plan.one_span or not self.settings.update_penalty:
            return True
        few = len(self.plan.whole) * self.shape.H <= FEW and len(self.plan.spans) >= 4 * len(self.plan.whole)
        return self.settings.beat is not None and not few

    @property
    def _unit(self) -> bool:
        """Whether keys are normalised before A meets them. Gain "unit" divides A k by its length: theirs has no say."""
        return self.settings.normalize_key and self.settings.gain != "unit"

    @property
    def _beat(self) -> tuple[int, float]:
        period, eta = self.settings.beat or (HUGE, 0.0)
        return min(period, HUGE), eta

    def _directions(self, x: Inputs, state: State, kept: Kept) -> Tensor:
        """Fill kept.a, kept.gain and kept.A; returns A after the last token."""
        s, plan, final = self.shape, self.plan, torch.empty_like(state.A)
        if not self._serial:
            (self._starts if self.settings.beat is None else self._starts_refreshed)(x.u, state, kept)
        spans, start = (plan.whole, state.A) if self._serial else (plan.spans, kept.A)
        self._launch(
            penalty.forward_walk, (len(spans) * s.H,),
            x.k, x.u, start, state.t, spans, kept.A, final, kept.a, kept.gain, kept.J, plan.span_first,
            self._scratch(len(spans), state.A),
            s.H, s.D, self.settings.penalty_scale, *self._beat, plan.span if self._serial else 0,
            BD=s.BD, **self._how("UPDATE", "REFRESH", "GAIN", "ELU"), **self._walk(),
            EXACT=self.precision.exact, WARPS=s.warps,
        )  # fmt: skip
        return final

    def _starts(self, u: Tensor, state: State, kept: Kept) -> None:
        """A before every span, without refresh: the inverse of a prefix sum of u u^T."""
        plan, A, out = self.plan, state.A, kept.A
        self._square_sum(u, out, unit=True)
        self._running_sum(out, self._inverse(A), torch.empty_like(A), plan.span_first, reverse=False)
        s, programs = self.shape, len(plan.spans) * self.shape.H
        self._launch(
            information.invert_spans, (programs,),
            out, A, plan.spans, A.new_empty(programs, 16, s.BD + 16), s.H, s.D,
            BD=s.BD, WALK=self.precision.walk, WARPS=s.warps, num_warps=s.warps,
        )  # fmt: skip

    def _starts_refreshed(self, u: Tensor, state: State, kept: Kept) -> None:
        """A before every span, with refresh: what each span does to any A, for all at once; then those, in order."""
        s, plan, out = self.shape, self.plan, kept.A
        C, F, J = (torch.empty_like(out) for _ in range(3))
        V = torch.empty_like(u, dtype=torch.float32)
        self._launch(
            penalty.element_walk, (len(plan.spans) * s.H,),
            u, state.t, plan.spans, self._scratch(len(plan.spans), out), C, F, V,
            s.H, s.D, self.settings.penalty_scale, *self._beat,
            BD=s.BD, WALK=self.precision.walk, EXACT=self.precision.exact, WARPS=s.warps, num_warps=s.warps,
        )  # fmt: skip
        self._square_sum(V, J, unit=False)
        programs = len(plan.whole) * s.H
        self._launch(
            information.compose, (programs,),
            state.A, C, F, J, out, plan.span_first, out.new_empty(programs, 16, s.BD + 16), s.H, s.D,
            BD=s.BD, WALK="tf32x3", WARPS=s.warps, num_warps=s.warps,
        )  # fmt: skip

    def _square_sum(self, u: Tensor, out: Tensor, unit: bool) -> None:
        s, plan = self.shape, self.plan
        self._launch(
            information.square_sum, (len(plan.spans) * s.H,),
            u, plan.spans, out, s.H, s.D, self.settings.penalty_scale,
            BD=s.BD, BLOCK=32, UNIT=unit, WALK=self.precision.walk, num_warps=s.warps,
        )  # fmt: skip

    def _inverse(self, x: Tensor) -> Tensor:
        s, out, programs = self.shape, torch.empty_like(x), len(self.plan.whole) * self.shape.H
        self._launch(
            information.invert, (programs,),
            x, out, x.new_empty(programs, 16, s.BD + 16), s.D,
            BD=s.BD, WALK=self.precision.walk, WARPS=s.warps, num_warps=s.warps,
        )  # fmt: skip
        return out

    def _through_inverse(self, x: Tensor, y: Tensor) -> Tensor:
        """-x sym(y) x: given x = m^-1, the gradient of m from that of x, which is y; or the reverse."""
        s, out = self.shape, torch.empty_like(x)
        self._launch(
            information.sandwich, (len(self.plan.whole) * s.H, parts(s.D, 16)),
            x, y, out, s.D, BD=s.BD, BLOCK=16, WALK=self.precision.walk, num_warps=s.warps,
        )  # fmt: skip
        return out

    def _directions_backward(
        self, x: Inputs, state: State, kept: Kept, dP: Tensor, dk: Tensor, A: Tensor, dA: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Complete dk; returns du and the gradient of the initial A."""
        s, plan, beat = self.shape, self.plan, self._beat
        programs = (len(plan.spans) * s.H,)
        refresh = self.settings.beat is not None
        G, Z, Y, K = (torch.empty_like(kept.a) if refresh else dP for _ in range(4))
        self._launch(
            penalty.backward_walk, programs,
            x.k, x.u, kept.gain, dP, dk, G, Z, Y, kept.J, K, kept.A, state.t, plan.spans, plan.first,
            s.H, s.D, self.settings.penalty_scale, *beat,
            BD=s.BD, **self._how("UPDATE", "REFRESH", "ELU"), **self._walk(),
        )  # fmt: skip
        if refresh:
            initial = torch.empty_like(dA)
            self._launch(
                penalty.gradient_scan, (len(plan.whole) * s.H,),
                Z, Y, G, K, dA, initial, plan.whole, s.H, s.D, BD=s.BD, DOT=self.precision.dot, num_warps=s.warps,
            )  # fmt: skip
            return self._refreshed(x, state, kept, dP, K, Z, Y, G), initial
        sums = state.A.new_empty(len(plan.short), s.H, s.D, s.D)
        total = torch.empty_like(state.A)
        fixed = not self.settings.update_penalty
        self._launch(
            information.outer_sum, (len(plan.short) * s.H,),
            G, kept.a, x.k, plan.short, plan.first, sums, s.H, s.D,
            BD=s.BD, BLOCK=32, FIXED=fixed, **self._how("ELU"), UNIT=self._unit,
            DOT=self.precision.dot, num_warps=s.warps, num_stages=1,
        )  # fmt: skip
        if fixed:
            self._running_sum(sums, dA, total, plan.short_first, reverse=True)
            return torch.zeros_like(x.u), (total + total.mT) / 2
        # In information form: the gradient of A^-1 after the last token, then before the first.
        self._running_sum(sums, self._through_inverse(A, dA), total, plan.short_first, reverse=True)
        du = torch.empty_like(x.u)
        self._launch(
            information.direction_backward, (len(plan.chunks) * s.H,),
            x.u, kept.a, G, sums, du, plan.chunks, plan.places, plan.first, plan.short_first,
            s.H, s.D, self.settings.penalty_scale,
            BD=s.BD, CHUNK=CHUNK, SHORT=SHORT, DOT=self.precision.dot, num_warps=s.finishing, num_stages=1,
        )  # fmt: skip
        return du, self._through_inverse(self._inverse(state.A), total)

    def _refreshed(
        self, x: Inputs, state: State, kept: Kept, dP: Tensor, V: Tensor, Z: Tensor, X: Tensor, rest: Tensor
    ) -> Tensor:
        """du with refresh. X and rest are memory to use."""
        s, plan, scalars = self.shape, self.plan, (self.settings.penalty_scale, *self._beat)
        self._launch(
            penalty.factor_backward, (len(plan.chunks) * s.H,),
            x.k, x.u, dP, V, Z, kept.J, X, rest, plan.chunks, plan.places, state.t, s.H, s.D, *scalars,
            BD=s.BD, STEPS=4, **self._how("ELU"), UNIT=self._unit, DOT=self.precision.times, num_warps=4,
        )  # fmt: skip
        du = X if X.dtype == x.u.dtype else torch.empty_like(x.u)
        self._launch(
            penalty.direction_walk, (len(plan.spans) * s.H,),
            x.u, X, rest, Z, du, kept.A, state.t, plan.spans, s.H, s.D, *scalars,
            BD=s.BD, DOT=self.precision.times, WALK=self.precision.walk, num_warps=4 if s.half else s.warps,
        )  # fmt: skip
        return du

    def _scratch(self, programs: int, like: Tensor) -> Tensor:
        """256 floats for each program of a walk (see pieces.cholesky_inverse)."""
        return like.new_empty(programs * self.shape.H, 256)

    def _walk(self) -> dict[str, Any]:
        s, p = self.shape, self.precision
        return {"UNIT": self._unit, "PAST": p.dot, "WALK": p.walk, "num_warps": s.warps, "num_stages": 1}
