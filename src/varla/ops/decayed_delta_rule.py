"""What the VLA paper calls DeltaNet: S <- g S + (v - S k) k^T, o = S q, with a gate g in (0, 1] that decays all of S.

The delta rule of Yang et al. is `delta_rule`. This one has no write strength, and its gate decays all keys alike. In
the paper's text the gate is a scalar; in its experiments every value channel (row of S) has its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, overload

from torch import Tensor

from varla.ops import dispatch
from varla.ops.checks import check_inputs
from varla.ops.dispatch import CallOptions, Mechanism
from varla.ops.memory import kernel_form, memory_chunk, reference_form
from varla.ops.memory.ranks import memory_over_ranks, refuse_channels
from varla.ops.memory.settings import MemorySettings
from varla.ops.packing import check_packing
from varla.ops.split import Split
from varla.ops.state import DeltaRuleState

# With a gate per channel: up to how many tokens the loop is faster than chunks (on a CPU), and tokens in a chunk.
CHANNEL_LOOP_TOKENS, CHANNEL_CHUNK = 128, 16

# "auto" uses the kernels up to this many tokens. They go token by token; for longer sequences the chunk form in PyTorch
# is faster (benchmarks/RESULTS.md).
KERNEL_TOKENS = 2048


class Call(CallOptions[DeltaRuleState], total=False):
    """The keywords of `varla.decayed_delta_rule`, for type checkers."""

    normalize_key: bool


SCALARS = {"normalize_key": True}


@overload
def decayed_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, *, return_state: Literal[False] = False, **options: Unpack[Call]
) -> Tensor: ...
@overload
def decayed_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, *, return_state: Literal[True], **options: Unpack[Call]
) -> tuple[Tensor, DeltaRuleState]: ...
@dispatch.accepts(dispatch.CALL, SCALARS)
def decayed_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, *, return_state: bool = False, **options: Unpack[Call]
) -> Tensor | tuple[Tensor, DeltaRuleState]:
    """The paper's eq. (deltanet). Arguments that `varla.vla` also has mean the same here.

    Args:
        q: queries [B, T, H, D], used as they are.
        k: keys [B, T, H, D].
        v: values [B, T, H, Dv].
        log_gate: logarithm of the gate [B, T, H], or one for each value channel [B, T, H, Dv]; at most 0 (for a sigmoid
            gate, `logsigmoid` of its input).
        normalize_key: divide keys by their length.
        initial_state, return_state, cu_seqlens, chunk_size: as for `varla.vla`.
        backend: "reference", "chunk", "triton" (token by token, on a GPU) or "auto". The chunk form computes a gate per
            channel as Dv heads with one value each, which costs Dv times as much.

    Returns:
        o [B, T, H, Dv] in the inputs' dtype, or (o, DeltaRuleState) with `return_state`.
    """
    call, own = dispatch.split(options, SCALARS)
    settings = _settings(**own)
    inputs, sizes, per_channel = _checked(q, k, v, log_gate, "B T H")
    if not per_channel:
        return dispatch.run(_DECAYED, inputs, sizes, settings, return_state, **call)
    if isinstance(call["cu_seqlens"], Split) and call["cu_seqlens"].ranks > 1:
        refuse_channels()
    backend, chunk_size = call.pop("backend"), call.pop("chunk_size")
    form = dispatch.choose(_CHANNELS, backend, chunk_size, sizes, q)
    if form == "chunk" and backend == "auto" and chunk_size is None and dispatch.loop_pays(sizes, CHANNEL_LOOP_TOKENS):
        form = "reference"
    if form == "chunk":
        size = CHANNEL_CHUNK if chunk_size is None else chunk_size
        return _by_rows(inputs, sizes, settings, return_state, **call, chunk_size=size)
    return dispatch.run(_CHANNELS, inputs, sizes, settings, return_state, **call, backend=form, chunk_size=None)


def decayed_delta_rule_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gate: Tensor,
    state: DeltaRuleState | None = None,
    *,
    normalize_key: bool = True,
) -> tuple[Tensor, DeltaRuleState]:
    """One token: q, k [B, H, D], v [B, H, Dv], log_gate [B, H] or [B, H, Dv]. Returns (o [B, H, Dv], state)."""
    inputs, sizes, _ = _checked(q, k, v, log_gate, "B H")
    return dispatch.run_step(_DECAYED, inputs, sizes, _settings(normalize_key), state)


def _checked(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, where: str
) -> tuple[tuple[Any, ...], dict[str, int], bool]:
    """(the memory's inputs, sizes, whether every channel has its own gate); tensors begin with dimensions `where`."""
    per_channel = isinstance(log_gate, Tensor) and log_gate.dim() == len(where.split()) + 1
    gate = f"{where} Dv" if per_channel else where
    (q, k, v, log_gate), sizes = check_inputs(
        {"q": (q, f"{where} D"), "k": (k, f"{where} D"), "v": (v, f"{where} Dv"), "log_gate": (log_gate, gate)}
    )
    return (q, k, v, None, None, log_gate if per_channel else log_gate[..., None]), sizes, per_channel


def _settings(normalize_key: bool = True) -> tuple[MemorySettings]:
    options = {"feature_map": "identity", "normalizer": False, "normalize_key": normalize_key, "decay_first": False}
    return (dispatch.settings_of(MemorySettings, options),)


def _by_rows(
    inputs: Sequence[Any],
    sizes: Mapping[str, int],
    settings: Sequence[Any],
    return_state: bool,
    *,
    initial_state: DeltaRuleState | None,
    cu_seqlens: Tensor | None,
    chunk_size: int,
) -> Any:
    """The chunk form with a gate per channel. Rows of S do not mix, so each is computed as a head with one value."""
    q, k, v, *_, log_gate = inputs
    H, D, Dv = (sizes[letter] for letter in ("H", "D", "Dv"))
    unpacked = {**sizes, "B": check_packing(cu_seqlens, sizes["B"], sizes["T"], q.device)}
    state = dispatch.begin(_CHANNELS, "initial_state", initial_state, unpacked, settings, inputs)
    q, k = (x.repeat_interleave(Dv, 2) for x in (q, k))
    v_rows, gate_rows = (x.flatten(2)[..., None] for x in (v, log_gate))
    o, rows = dispatch.run(
        _DECAYED, (q, k, v_rows, None, None, gate_rows), {**sizes, "H": H * Dv, "Dv": 1}, settings, True,
        initial_state=DeltaRuleState(state.S.reshape(-1, H * Dv, 1, D), state.t), cu_seqlens=cu_seqlens,
        backend="chunk", chunk_size=chunk_size,
    )  # fmt: skip
    o = o.reshape(v.shape)
    return (o, DeltaRuleState(rows.S.reshape(-1, H, Dv, D), rows.t)) if return_state else o


_DECAYED = Mechanism(
    DeltaRuleState, reference_form, memory_chunk, kernel_form, ranks=memory_over_ranks, kernel_tokens=KERNEL_TOKENS
)
# With a gate per channel the kernels are the fastest form on a GPU at every length.
_CHANNELS = Mechanism(DeltaRuleState, reference_form, memory_chunk, kernel_form, ranks=memory_over_ranks)
