"""Gated VLA: Gated DeltaNet's memory, written along second-order directions."""

from typing import Any

import torch
from torch import Tensor, nn

from varla.arguments import check_choice, check_flag, check_number
from varla.layers.gates import CopiedLinear, GatedLayer, PenaltyStrength
from varla.layers.vla import decodes, penalty_readings
from varla.layers.writes import Writes, penalised
from varla.ops import ForgettingState, State, VLAState, vla, vla_step
from varla.ops.split import Packing
from varla.ops.vla import VLASettings

U_INITS = ("keys", "drawn")
STRONGEST = 1000  # strengths are at most this many times lambda0, or float32 states lose their digits


class GatedVLA(GatedLayer):
    """A learned strength w decides how much each token's direction u adds to the penalty A^-1.

        A <- A - w A u u^T A / (1 + w u^T A u),   a = A k / |A k|
        S <- d S,   S <- S + beta (v - S k) a^T,   o = D ** -0.5 S q

    q and k have unit length after SiLU, u has unit length. u, beta, d and w are projections of the input (after the
    convolution), and all but u are one number a head. With w = 0 this is Gated DeltaNet. The projection of u begins as
    that of k: A then penalises keys that were written, from the first step of training on.

    A forgets what S forgets: every `beat` tokens, A^-1 <- lambda0 I + C (A^-1 - lambda0 I), with C the product of d
    since the last beat. Without it the penalty grows with the context, also beyond what was trained with. `beat` should
    be a fraction of the length of training rows, so that the model sees beats, and a multiple of 64 for speed.
    """

    name = "gated-vla"
    summary = "Gated VLA: d S + b (v - d S k) a^T with a = A k / |A k|, A by learned strengths"
    state_class = VLAState

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        strength_init: float = 2.0,
        u_init: str = "keys",
        lambda0: float = 0.1,
        refresh_every: int | None = None,
        refresh: float = VLASettings.refresh,
        gain: str = "unit",
        update_penalty: bool = True,
        forget: bool | None = None,
        beat: int = 256,
        **options: Any,
    ):
        """Options: `strength_init`, `u_init`, `forget`; others as in `varla.vla`; those that all mechanisms share.

        A head whose time scale begins at `tokens` begins with w = strength_init * tokens / 4096. With the unit gain
        only w / lambda0 matters. `u_init`: the projection of u begins as that of k ("keys"), or by itself ("drawn").
        `forget` None: True, unless A is refreshed or fixed.
        `update_penalty=False` keeps A at I / lambda0. It is an ablation: with the unit gain that is Gated DeltaNet, and
        u and w are not used.
        """
        super().__init__(d_model, n_heads, **options)
        self.options: dict[str, Any] = {
            "lambda0": lambda0, "refresh_every": refresh_every, "refresh": refresh, "gain": gain,
            "update_penalty": update_penalty, "normalizer": False, **self.FEATURES,
        }  # fmt: skip
        if forget is None:
            forget = update_penalty and refresh_every is None
        check_flag("forget", forget)
        if forget:
            self.options |= {"forget_at": "beat", "beat": beat}
            self.state_class = ForgettingState  # type: ignore[assignment,misc]  # this layer alone
        self.settings = VLASettings(**self.options)  # a wrong value is refused here, not at the first batch
        self.settings.check_forget(torch.zeros(1) if forget else None)
        check_number("strength_init", strength_init, above=0)
        most = STRONGEST * lambda0
        if strength_init > most:
            raise ValueError(
                f"strength_init must be at most {STRONGEST} * lambda0 = {most:g} (above, rounding errors would stay in "
                f"A), got {strength_init!r}"
            )
        check_choice("u_init", u_init, U_INITS)
        bias = self.k.bias is not None
        self.u = CopiedLinear(self.k) if u_init == "keys" else nn.Linear(d_model, self.k.out_features, bias=bias)
        self.strength = PenaltyStrength(d_model, n_heads, start=strength_init, most=most)

    def gates(self, x: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        """See GatedLayer."""
        found = {**super().gates(x, dtype), "strength": self.strength(x).to(dtype)}
        return {**found, "forget": found["decay"]} if self.settings.forget_at == "beat" else found

    def gate_readings(self, x: Tensor) -> dict[str, Tensor]:
        """See Layer. `forget` is the decay."""
        return {name: gate for name, gate in super().gate_readings(x).items() if name != "forget"}

    def mix(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Packing) -> tuple[Tensor, State]:
        """See Layer."""
        u = self.heads(self.u(x))
        gates = self.gates(x, q.dtype)
        if decodes(k, cu_seqlens):
            now = {name: gate[:, 0] for name, gate in gates.items()}
            o, state = vla_step(q[:, 0], k[:, 0], v[:, 0], u[:, 0], memory, **now, **self.options)
            return o[:, None], state
        return vla(q, k, v, u, **gates, initial_state=memory, return_state=True, cu_seqlens=cu_seqlens, **self.options)

    def readings(self, memory: State, k: Tensor) -> dict[str, Tensor]:
        """As of VLA: norms of S and A, and k . a."""
        return {**super().readings(memory, k), **penalty_readings(memory, k, self.settings)}

    def written(self, x: Tensor, k: Tensor, v: Tensor) -> Writes:
        """See Layer."""
        gates = self.gates(x, k.dtype)
        return penalised(
            self.settings, k, v, self.heads(self.u(x)), beta=gates["beta"], decay=gates["decay"].exp(),
            strength=gates["strength"], forgets="forget" in gates,
        )  # fmt: skip
