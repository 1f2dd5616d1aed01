"""`varla.memory`: S is written along given directions and read by queries.

S <- d S                    decay, optional
S <- S + beta e a^T         e = v - S k, the prediction error; a from `varla.directions`, or the key itself
z <- d z + k,   o = S q / max(q . z, eps)
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Unpack, overload

from torch import Tensor

from varla.ops import dispatch
from varla.ops.checks import check_gated
from varla.ops.chunk.op import ChunkOperator
from varla.ops.custom_op import Arguments
from varla.ops.dispatch import CallOptions, Held, Mechanism, Result
from varla.ops.memory.chunk import MemoryCell
from varla.ops.memory.ranks import memory_over_ranks
from varla.ops.memory.reference import memory_reference
from varla.ops.memory.settings import MemoryOptions, MemorySettings
from varla.ops.state import MemoryState


class Call(MemoryOptions, CallOptions[MemoryState], total=False):
    """The keywords of `varla.memory`, for type checkers."""

    beta: Tensor | None
    decay: Tensor | None


SCALARS = dispatch.defaults_of(MemorySettings)
Optional = Tensor | None


@overload
def memory(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Optional = None,
    *,
    return_state: Literal[False] = False,
    **options: Unpack[Call],
) -> Tensor: ...
@overload
def memory(
    q: Tensor, k: Tensor, v: Tensor, a: Optional = None, *, return_state: Literal[True], **options: Unpack[Call]
) -> tuple[Tensor, MemoryState]: ...
@dispatch.accepts({"beta": None, "decay": None}, dispatch.CALL, SCALARS)
def memory(
    q: Tensor, k: Tensor, v: Tensor, a: Optional = None, *, return_state: bool = False, **options: Unpack[Call]
) -> Tensor | tuple[Tensor, MemoryState]:
    """The memory of every mechanism: lines 19 to 24 of Algorithm 1. Every backend computes it exactly.

    Args:
        q: queries [B, T, H, D], raw: the feature map is applied inside.
        k: keys [B, T, H, D], raw: feature map and normalisation are applied inside.
        v: values [B, T, H, Dv].
        a: write directions [B, T, H, D], from `varla.directions` or your own; they are not normalised. None: the key,
            after feature map and normalisation.
        beta: write strengths [B, T, H], 0 to 2. None: 1.
        decay: logarithm of the decay of S and z [B, T, H], at most 0. None: no decay.
        initial_state, return_state, cu_seqlens, backend, chunk_size: as for `varla.vla`.
        options: eps, feature_map, normalizer, normalize_query, normalize_key, scale, error, decay_first; see
            `MemorySettings`.

    Returns:
        o [B, T, H, Dv] in the inputs' dtype, or (o, MemoryState) with `return_state`.
    """
    call, own = dispatch.split(options, {"beta": None, "decay": None, **SCALARS})
    beta, decay = own.pop("beta", None), own.pop("decay", None)
    settings = dispatch.settings_of(MemorySettings, own)
    inputs, sizes = check_gated(
        {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv")},
        {"a": (a, "B T H D"), "beta": (beta, "B T H"), "decay": (decay, "B T H")},
    )
    return dispatch.run(
        MEMORY if settings.decay_first else _DECAY_LAST, inputs, sizes, (settings,), return_state, **call
    )


def reference_form(inputs: Sequence[Any], held: Held, t: Tensor, settings: MemorySettings) -> Result:
    """The loop, with the arguments of dispatch.Mechanism.reference."""
    q, k, v, a, beta, decay = inputs
    S, z = held
    o, S, z = memory_reference(q, k, v, a, beta, decay, S, z, settings)
    return o, [S, z]


def kernel_form(call: Arguments, held: Held, keep: bool) -> Result:
    """The kernels, with the arguments of dispatch.Mechanism.kernels."""
    from varla.ops.memory.triton.op import memory_kernels

    return memory_kernels(call, held, keep)


memory_chunk = ChunkOperator("memory_chunk", MemoryCell, "q k v a? beta? decay?", "S z?", MemorySettings)
MEMORY = Mechanism(MemoryState, reference_form, memory_chunk, kernel_form, ranks=memory_over_ranks)
_DECAY_LAST = replace(MEMORY, kernel_tokens=0)  # "auto" uses no kernels: they keep no z then
