"""VLA as one PyTorch operator: the kernels of `directions`, then those of `memory`; the backward in reverse.

The backward is fused in two places. The kernel that computes da (`memory.finish`) also applies the gain's backward, in
float32. The walk that computes the keys' gradient through a adds it to their gradient through S. As two operators, both
gradients would be rounded and written once more.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from varla.ops.directions.settings import DirectionSettings
from varla.ops.directions.triton import launch as directions
from varla.ops.memory.settings import MemorySettings
from varla.ops.memory.triton import launch as memory
from varla.ops.triton.launcher import Launcher, Precision
from varla.ops.triton.op import KernelOperator

OWN = 1 + len(directions.Kept._fields)  # of the buffers, those of `memory` come after a and those of `directions`


@dataclass(frozen=True)
class VLALauncher(Launcher):
    """One call of `vla`."""

    inputs, state, output_like = "q k v u beta? decay? strength? forget?", "S A z f?", 2

    along: DirectionSettings
    settings: MemorySettings

    @cached_property
    def halves(self) -> tuple[directions.DirectionLauncher, memory.MemoryLauncher]:
        """The launchers of `directions` and of `memory`."""
        shared = self.plan, self.shape, self.precision
        return (
            directions.DirectionLauncher(*shared, self.along, given=self.given, dry=self.dry),
            memory.MemoryLauncher(*shared, self.settings, given=self.given, dry=self.dry),
        )

    @property
    def constants(self) -> tuple[Any, ...]:
        """See Launcher."""
        first, second = self.halves
        return *first.constants, *second.constants

    @classmethod
    def spans(cls, tokens: int, heads: int, given: Sequence[bool], *settings: Any) -> tuple[int, int]:
        """See Launcher."""
        return directions.DirectionLauncher.spans(tokens, heads, given, *settings)

    @staticmethod
    def buffers(
        inputs: Sequence[Any], chunks: int, spans: int, along: DirectionSettings, settings: MemorySettings
    ) -> list[Tensor]:
        """a, and what the forward of `directions` and of `memory` keeps."""
        q, k, v, _, beta, decay, _, forget = inputs
        tokens, (H, D) = q.shape[0] * q.shape[1], q.shape[2:]
        return [
            q.new_empty(tokens, H, D, dtype=Precision.of(q.dtype, int(D)).buffer),
            *directions.DirectionLauncher.buffers((k, forget), chunks, spans, along),
            *memory.MemoryLauncher.buffers((q, k, v, beta, decay), chunks, spans, settings),
        ]

    @staticmethod
    def also_kept(state: Sequence[Any], results: Sequence[Tensor]) -> list[Tensor]:
        """The initial and the final A."""
        return [state[1], results[2]]

    def run(self, x: Sequence[Any], state: Sequence[Any], t: Tensor, kept: list[Tensor]) -> Sequence[Tensor]:
        """See Launcher."""
        q, k, v, u, beta, decay, strength, forget = x
        S, A, z, _ = state
        first, second = self.halves
        a, along, held = kept[0], directions.Kept(*kept[1:OWN]), memory.Kept(*kept[OWN:])
        A, *f = first.forward(k, directions.Penalty(u, strength), forget, A, t, a, along)
        o, S, z = second.forward(memory.Tokens(q, k, v, a, beta, decay), held, S, z)
        return o, S, A, z, *f

    def run_backward(
        self, x: Sequence[Any], t: Tensor, kept: Sequence[Tensor], do: Tensor, dfinal: Sequence[Tensor]
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        """See Launcher."""
        q, k, v, u, beta, decay, strength, _ = x
        dS, dA, dz, *df = dfinal
        *buffers, A, final = kept
        a, along, held = buffers[0], directions.Kept(*buffers[1:OWN]), memory.Kept(*buffers[OWN:])
        first, second = self.halves
        tokens, penalty = memory.Tokens(q, k, v, a, beta, decay), directions.Penalty(u, strength)
        g = second.backward(tokens, held, do, dS, dz, memory.Gain(self.along.gain, along.gain))
        (du, dstrength), dforget, (dA, *df) = first.backward(
            k, penalty, A.contiguous(), t, a, along, final, g.da, g.dk, [dA, *df]
        )
        return (g.dq, g.dk, g.dv, du, g.dbeta, g.ddecay, dstrength, dforget), (g.dS, dA, g.dz, *df)


vla_triton = KernelOperator("vla_triton", VLALauncher, DirectionSettings, MemorySettings).forward
