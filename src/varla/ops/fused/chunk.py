"""VLA in chunk form: `directions` and `memory` run on each segment while it is in the cache.

Two separate passes over the tokens would store a [B, T, H, D] and read the keys twice.
"""

from collections.abc import Sequence

from torch import Tensor

from varla.ops.chunk.driver import Context, Inputs, Tensors
from varla.ops.chunk.op import ChunkOperator
from varla.ops.directions import chunk as directions
from varla.ops.directions.settings import DirectionSettings
from varla.ops.features import Features
from varla.ops.memory import chunk as memory
from varla.ops.memory.settings import MemorySettings


class VLACell:
    """Inputs q, k, v, u; state S, A, z. See chunk.driver.Cell."""

    output_like = 2

    def __init__(self, along: DirectionSettings, settings: MemorySettings):
        """Remember the scalars."""
        self.along, self.settings, self.refresh_beat = along, settings, along.refresh_beat
        self.may_be_minus_infinity: Sequence[int] = (1,) if settings.feature_map == "elu1" else ()

    def forward(self, inputs: Inputs, state: Tensors, context: Context) -> tuple[Tensor, Tensors, Tensors]:
        """See Cell."""
        q, k, v, u = inputs
        S, A, z = state
        Q, keys = self._features(q, k, context.valid)
        a, A0, A = directions.forward(keys.y, u, A, self.along, context.refresh)
        o, (S0, z0), (S, z) = memory.forward(Q.y, keys, v, a, None, (S, z), self.settings)
        return o, (S0, A0, z0), (S, A, z)

    def backward(
        self, inputs: Inputs, starts: Tensors, context: Context, do: Tensor, dstate: Tensors
    ) -> tuple[Inputs, Tensors]:
        """See Cell."""
        q, k, v, u = inputs
        S0, A0, z0 = starts
        dS, dA, dz = dstate
        Q, keys = self._features(q, k, context.valid)
        written = directions.Recomputed(keys.y, u, A0, self.along, context.refresh)
        grads, dF, (dS, dz) = memory.backward(Q.y, keys, v, written.a, None, (S0, z0), do, (dS, dz), self.settings)
        dK, du, dA = written.backward(grads.da, dA)
        dk = keys.backward(dK if grads.dK is None else grads.dK + dK, dF)
        return (Q.backward(grads.dQ), dk, grads.dV, du), (dS, dA, dz)

    def _features(self, q: Tensor, k: Tensor, valid: Tensor | None) -> tuple[Features, Features]:
        s = self.settings
        return Features(q, s.feature_map, False), Features(k, s.feature_map, s.normalize_key, valid)


vla_chunk = ChunkOperator("vla_chunk", VLACell, "q k v u", "S A z", DirectionSettings, MemorySettings)
