"""Mesa: ridge regression on the context, solved exactly for every query (the memory of MesaNet)."""

import math
from typing import Any

import torch
from torch import Tensor

from varla.layers.gates import GatedLayer
from varla.layers.vla import decodes
from varla.layers.writes import Rule, Writes
from varla.ops import MesaState, State, mesa, mesa_step
from varla.ops.directions.settings import LOSS, DirectionSettings
from varla.ops.split import Packing


class Mesa(GatedLayer):
    """Reads out the weighted least-squares fit of all pairs so far, older pairs counting less.

        lambda <- d lambda + beta k k^T,   G <- d G + beta v k^T,   o = G lambda^-1 q

    q and k have unit length after SiLU. beta and d are projections of the input (after the convolution), one number a
    head. lambda begins at lambda0 I, and every `beat` tokens the part of that prior that has decayed is given back.
    Stronger decays than float32 can hold between two beats are clamped: log d is at least log(0.002 / lambda0) / beat,
    -0.19 for the defaults, a time scale of 5 tokens.
    """

    name = "mesa"
    summary = "Mesa: exact ridge regression on the context, G (lambda0 I + sum b k k^T)^-1 q, with decay"
    state_class = MesaState

    def __init__(self, d_model: int, n_heads: int, *, lambda0: float = 1.0, beat: int = 32, **options: Any):
        """Options: `lambda0`, the prior; `beat`, tokens between two returns of the prior; those of gated mechanisms.

        With `negative_eigenvalues`, weights beta are up to 2. Nothing changes its sign here.
        """
        super().__init__(d_model, n_heads, **options)
        self.options: dict[str, Any] = {"lambda0": lambda0, "beat": beat, **self.FEATURES, "scale": 1.0}
        DirectionSettings(lambda0=lambda0, beat=beat)  # a wrong value is refused here, not at the first batch
        most = self.beta.most
        least = (
            2 * LOSS * torch.finfo(torch.float32).eps * most
        )  # twice the bound: gates are rounded to the inputs' dtype
        if lambda0 <= least:
            raise ValueError(f"lambda0 must be above {least:.3g}: float32 states could forget nothing, got {lambda0!r}")
        self.lowest = math.log(least / lambda0) / beat

    def gates(self, x: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        """See GatedLayer. The decay is clamped, see the class."""
        return {"beta": self.beta(x).to(dtype), "decay": self.decay(x).clamp(min=self.lowest).to(dtype)}

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Packing
    ) -> tuple[Tensor, MesaState]:
        """See Layer."""
        gates = self.gates(x, q.dtype)
        if decodes(k, cu_seqlens):
            now = {name: gate[:, 0] for name, gate in gates.items()}
            o, state = mesa_step(q[:, 0], k[:, 0], v[:, 0], state=memory, **now, **self.options)
            return o[:, None], state
        return mesa(q, k, v, **gates, initial_state=memory, return_state=True, cu_seqlens=cu_seqlens, **self.options)

    def readings(self, memory: State, k: Tensor) -> dict[str, Tensor]:
        """Norms of S and A."""
        return {**super().readings(memory, k), "|A|": torch.linalg.matrix_norm(memory.tensors()["A"])}

    def written(self, x: Tensor, k: Tensor, v: Tensor) -> Writes:
        """See Layer. The penalty direction is the key, and its strength beta."""
        gates, keys = self.gates(x, k.dtype), self.keys(k)
        rule = Rule(
            error=False,
            reads="SA",
            lambda0=self.options["lambda0"],
            forget_at="token",
            beat=self.options["beat"],
        )
        return Writes(rule, keys, v, beta=gates["beta"], decay=gates["decay"].exp(), u=keys, strength=gates["beta"])
