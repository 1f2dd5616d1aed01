"""VLA of a sequence whose tokens are spread over ranks: `directions`, then `memory`. Nothing is fused."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from varla.ops import dispatch
from varla.ops.directions import DIRECTIONS, FADING, FORGETTING
from varla.ops.dispatch import Mechanism
from varla.ops.memory import MEMORY
from varla.ops.split import Split
from varla.ops.state import DirectionState, ForgettingDirectionState, ForgettingState, MemoryState, VLAState


def vla_over_ranks(
    mechanism: Mechanism[Any], inputs: Sequence[Any], sizes: Mapping[str, int], settings: Sequence[Any], split: Split,
    initial_state: Any, **call: Any,
) -> tuple[Tensor, VLAState | ForgettingState]:  # fmt: skip
    """(o of this rank's tokens, state after them); see dispatch.Mechanism.ranks."""
    (q, k, v, u, beta, decay, *gates), (along, own) = inputs, settings
    solving: Mechanism[Any] = DIRECTIONS
    kind: type[Any] = DirectionState
    if len(gates) > 1:
        solving, kind = FADING[False] if along.forget_at == "beat" else FORGETTING, ForgettingDirectionState
    solver = memory = None
    if initial_state is not None:
        dispatch.begin_split(mechanism, initial_state, sizes, settings, inputs, split)  # checks it
        held = initial_state.tensors()
        solver, memory = (each.of(held[name] for name in each.LAYOUT) for each in (kind, MemoryState))
    a, solver = dispatch.run(
        solving, (k, u, *gates), sizes, (along,), True, initial_state=solver, cu_seqlens=split, **call
    )
    o, memory = dispatch.run(
        MEMORY, (q, k, v, a, beta, decay), sizes, (own,), True, initial_state=memory, cu_seqlens=split, **call
    )
    after = {**memory.tensors(), **solver.tensors()}
    return o, mechanism.state.of(after[name] for name in mechanism.state.LAYOUT)
