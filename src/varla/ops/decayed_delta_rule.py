"""What the VLA paper calls DeltaNet: S <- g S + (v - S k) k^T, o = S q, with a gate g in (0, 1] that decays all of S.

The delta rule of Yang et al. is `delta_rule`; this one writes with full strength and forgets everything alike. In the
paper's text the gate is a number; in its experiments every value channel (row of S) has its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack, overload

from torch import Tensor

from varla.ops.checks import check_inputs
from varla.ops.dispatch import CallOptions, Mechanism, begin, choose, run, run_step, settings_of
from varla.ops.memory import kernel_form, memory_chunk, reference_form
from varla.ops.memory.settings import MemorySettings
from varla.ops.packing import check_packing
from varla.ops.state import DeltaRuleState

# With a gate per channel: tokens up to which the loop is faster than chunks (on a CPU), and the chunks' size.
CHANNEL_LOOP_TOKENS, CHANNEL_CHUNK = 128, 16

# Up to so many tokens "auto" takes the kernels, which go token by token; beyond, PyTorch's chunks are faster
# (benchmarks/RESULTS.md).
KERNEL_TOKENS = 2048


class DecayedDeltaRuleCall(CallOptions, total=False):
    """The keywords of `varla.decayed_delta_rule`, for type checkers."""

    normalize_key: bool
    initial_state: DeltaRuleState | None


@overload
def decayed_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gate: Tensor,
    *,
    return_state: Literal[False] = False,
    **options: Unpack[DecayedDeltaRuleCall],
) -> Tensor: ...
@overload
def decayed_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gate: Tensor,
    *,
    return_state: Literal[True],
    **options: Unpack[DecayedDeltaRuleCall],
) -> tuple[Tensor, DeltaRuleState]: ...
def decayed_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gate: Tensor,
    *,
    normalize_key: bool = True,
    initial_state: DeltaRuleState | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    chunk_size: int | None = None,
) -> Tensor | tuple[Tensor, DeltaRuleState]:
    """The paper's eq. (deltanet) in the contract of `varla.vla`, whose arguments of the same name mean the same.

    Args:
        q: queries [B, T, H, D], used as they are.
        k: keys [B, T, H, D].
        v: values [B, T, H, Dv].
        log_gate: logarithm of the gate [B, T, H], or of one for each value channel [B, T, H, Dv]; at most 0 (for a
            sigmoid gate, `logsigmoid` of its input).
        normalize_key: divide keys by their length.
        initial_state, return_state, cu_seqlens, chunk_size: as for `varla.vla`.
        backend: "reference", "chunk", "triton" (one token after the other, on a GPU) or "auto". In chunks, a gate per
            channel is Dv heads with one value each, and costs as much.

    Returns:
        o [B, T, H, Dv] in the inputs' type, or (o, DeltaRuleState) with `return_state`.
    """
    per_channel = isinstance(log_gate, Tensor) and log_gate.dim() == 4
    settings = _settings(normalize_key)
    (q, k, v, log_gate), sizes = check_inputs(
        {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv"),
         "log_gate": (log_gate, "B T H Dv" if per_channel else "B T H")}
    )  # fmt: skip
    inputs = (q, k, v, None, None, log_gate if per_channel else log_gate[..., None])
    call: dict[str, Any] = {"initial_state": initial_state, "return_state": return_state, "cu_seqlens": cu_seqlens}
    if not per_channel:
        return run(_DECAYED, inputs, sizes, settings, **call, backend=backend, chunk_size=chunk_size)  # type: ignore[no-any-return]
    form = choose(_CHANNELS, backend, chunk_size, sizes, q)
    if form == "chunk" and backend == "auto" and chunk_size is None and sizes["T"] <= CHANNEL_LOOP_TOKENS:
        form = "reference"
    if form != "chunk":
        return run(_CHANNELS, inputs, sizes, settings, **call, backend=form, chunk_size=None)  # type: ignore[no-any-return]
    size = CHANNEL_CHUNK if chunk_size is None else chunk_size
    return _by_rows(inputs, sizes, settings, **call, chunk_size=size)  # type: ignore[no-any-return]


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
    per_channel = isinstance(log_gate, Tensor) and log_gate.dim() == 3
    settings = _settings(normalize_key)
    (q, k, v, log_gate), sizes = check_inputs(
        {"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv"),
         "log_gate": (log_gate, "B H Dv" if per_channel else "B H")}
    )  # fmt: skip
    inputs = (q, k, v, None, None, log_gate if per_channel else log_gate[..., None])
    return run_step(_DECAYED, inputs, sizes, settings, state)


def _settings(normalize_key: bool) -> tuple[MemorySettings]:
    options = {"feature_map": "identity", "normalizer": False, "normalize_key": normalize_key}
    return (settings_of(MemorySettings, options),)


def _by_rows(
    inputs: Sequence[Any],
    sizes: Mapping[str, int],
    settings: Sequence[Any],
    *,
    initial_state: DeltaRuleState | None,
    return_state: bool,
    cu_seqlens: Tensor | None,
    chunk_size: int,
) -> Any:
    """The chunk form with a gate per channel: rows of S do not mix, so that each can be a head with one value."""
    q, k, v, *_, log_gate = inputs
    H, D, Dv = (sizes[letter] for letter in ("H", "D", "Dv"))
    whole = {**sizes, "B": check_packing(cu_seqlens, sizes["B"], sizes["T"], q.device)}
    state = begin(_CHANNELS, "initial_state", initial_state, whole, settings, q)
    q, k = (x.repeat_interleave(Dv, 2) for x in (q, k))
    v_rows, gate_rows = (x.flatten(2)[..., None] for x in (v, log_gate))
    o, rows = run(
        _DECAYED, (q, k, v_rows, None, None, gate_rows), {**sizes, "H": H * Dv, "Dv": 1}, settings,
        initial_state=DeltaRuleState(state.S.reshape(-1, H * Dv, 1, D), state.t), return_state=True,
        cu_seqlens=cu_seqlens, backend="chunk", chunk_size=chunk_size,
    )  # fmt: skip
    o = o.reshape(v.shape)
    return (o, DeltaRuleState(rows.S.reshape(-1, H, Dv, D), rows.t)) if return_state else o


_DECAYED = Mechanism(DeltaRuleState, reference_form, memory_chunk, kernel_form, kernel_tokens=KERNEL_TOKENS)
# With a gate per channel nothing is faster on a GPU than the kernels, however long the sequence.
_CHANNELS = Mechanism(DeltaRuleState, reference_form, memory_chunk, kernel_form)
