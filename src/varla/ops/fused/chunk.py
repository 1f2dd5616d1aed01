"""VLA in chunk form: `directions` and `memory` run on each segment while it is in the cache.

Two separate passes over the tokens would store a [B, T, H, D] and read the keys twice.
"""

from collections.abc import Sequence

from torch import Tensor

from varla.ops.chunk.driver import Context, Inputs, Tensors
from varla.ops.directions import chunk as directions
from varla.ops.directions import forgetting
from varla.ops.directions.settings import DirectionSettings
from varla.ops.memory import chunk as memory
from varla.ops.memory.settings import MemorySettings


class VLACell:
    """Inputs q, k, v, u, beta, decay, strength; state S, A, z. See chunk.driver.Cell."""

    output_like = 2
    beat: int | None = None

    def __init__(self, along: DirectionSettings, settings: MemorySettings):
        """Remember the scalars."""
        self.along, self.settings, self.refresh_beat = along, settings, along.refresh_beat
        self.may_be_minus_infinity: Sequence[int] = (1, 5) if settings.feature_map == "elu1" else (5,)

    def forward(self, inputs: Inputs, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See Cell."""
        q, k, v, u, beta, decay, strength = inputs
        S, A, z = state
        tokens = memory.Tokens.of(q, k, v, beta, decay, context.valid, self.settings)
        a, A0, A = directions.forward(tokens.keys.y, u, strength, A, self.along, context.refresh)
        o, (S0, z0), (S, z) = memory.forward(tokens, a, (S, z), self.settings)
        return o, (S0, A0, z0), (S, A, z)

    def backward(
        self, inputs: Inputs, starts: Tensors, context: Context, do: Tensor, dstate: Tensors
    ) -> tuple[Inputs, Tensors]:
        """See Cell."""
        q, k, v, u, beta, decay, strength = inputs
        S0, A0, z0 = starts
        dS, dA, dz = dstate
        tokens = memory.Tokens.of(q, k, v, beta, decay, context.valid, self.settings)
        along = directions.Recomputed(tokens.keys.y, u, strength, A0, self.along, context.refresh)
        g, (dS, dz) = memory.backward(tokens, along.a, (S0, z0), do, (dS, dz), self.settings)
        d = along.backward(g.da, dA)
        dk = tokens.keys.backward(g.dK + d.dK, g.dF)
        return (g.dq, dk, g.dv, d.du, g.dbeta, g.ddecay, d.dstrength), (dS, d.dA, dz)


class ForgettingVLACell(VLACell):
    """Inputs q, k, v, u, beta, decay, strength, forget; state S, A, z, f. See chunk.driver.Cell."""

    def __init__(self, along: DirectionSettings, settings: MemorySettings):
        """Remember the scalars. There is no refresh: `check_forget` refuses it."""
        super().__init__(along, settings)
        self.beat = along.beat
        if along.forget_at == "beat":
            self.may_be_minus_infinity = *self.may_be_minus_infinity, 7

    def forward(self, inputs: Inputs, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See Cell."""
        q, k, v, u, beta, decay, strength, forget = inputs
        S, A, z, f = state
        tokens = memory.Tokens.of(q, k, v, beta, decay, context.valid, self.settings)
        given = forgetting.Tokens(tokens.keys.y, u, strength, forget, forgetting.due_of(context))
        a, (A0, f0), (A, f) = forgetting.forward(given, (A, f), self.along)
        o, (S0, z0), (S, z) = memory.forward(tokens, a, (S, z), self.settings)
        return o, (S0, A0, z0, f0), (S, A, z, f)

    def backward(
        self, inputs: Inputs, starts: Tensors, context: Context, do: Tensor, dstate: Tensors
    ) -> tuple[Inputs, Tensors]:
        """See Cell."""
        q, k, v, u, beta, decay, strength, forget = inputs
        S0, A0, z0, f0 = starts
        dS, dA, dz, df = dstate
        tokens = memory.Tokens.of(q, k, v, beta, decay, context.valid, self.settings)
        given = forgetting.Tokens(tokens.keys.y, u, strength, forget, forgetting.due_of(context))
        along = forgetting.Recomputed(given, (A0, f0), self.along)
        g, (dS, dz) = memory.backward(tokens, along.a, (S0, z0), do, (dS, dz), self.settings)
        d, (dA, df) = along.backward(g.da, (dA, df))
        dk = tokens.keys.backward(g.dK + d.dK, g.dF)
        return (g.dq, dk, g.dv, d.du, g.dbeta, g.ddecay, d.dstrength, d.dforget), (dS, dA, dz, df)


INPUTS = "q k v u beta? decay? strength?"
vla_chunk = directions.DirectionOperator("vla_chunk", VLACell, INPUTS, "S A z", DirectionSettings, MemorySettings)
vla_forgetting_chunk = forgetting.ForgettingOperator(
    "vla_forgetting_chunk", ForgettingVLACell, f"{INPUTS} forget", "S A z f", DirectionSettings, MemorySettings
)
