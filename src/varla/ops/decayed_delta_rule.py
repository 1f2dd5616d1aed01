"""What the VLA paper calls DeltaNet: S <- g S + (v - S k) k^T, o = S q, with a gate g in (0, 1] that decays all of S.

The delta rule of Yang et al. is `delta_rule`; this one writes with full strength and forgets everything alike. In the
paper's text the gate is a number; in its experiments every value channel (row of S) has its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from varla.ops.call import Mechanism, begin, choose, run, run_step
from varla.ops.checks import check_inputs
from varla.ops.features import unit
from varla.ops.packing import check_packing
from varla.ops.reference import apply, outer
from varla.ops.settings import DecayedDeltaRuleSettings
from varla.ops.state import DeltaRuleState

# A gate per channel: tokens, up to which the loop is faster than chunks (on a CPU), and the chunks' size.
LOOP, SMALL_CHUNK = 128, 16

# Up to so many tokens "auto" takes the kernels, which go token by token; beyond, PyTorch's chunks are faster. On an
# H200, forward of one sequence of the delta rule, which costs the same: 4 heads of 32, 2.1 ms against 3.0 at 1024
# tokens and 4.2 against 4.1 at 2048; 16 of 128, 2.6 against 3.3 at 2048.
KERNEL_TOKENS = 2048


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
) -> Any:
    """The paper's eq. (deltanet) in the contract of `varla.vla`, whose arguments of the same name mean the same.

    Args:
        q: queries [B, T, H, D], used as they are.
        k: keys [B, T, H, D].
        v: values [B, T, H, Dv].
        log_gate: logarithm of the gate [B, T, H], or of one for each value channel [B, T, H, Dv]; at most 0 (for a
            sigmoid gate, `logsigmoid` of its input).
        normalize_key: divide keys by their length.
        initial_state, return_state, cu_seqlens, chunk_size: as for `varla.vla`.
        backend: "reference", "chunk", "triton" (token by token, on a GPU) or "auto". In chunks, a gate per channel is
            Dv heads with one value each, and costs as much.

    Returns:
        o [B, T, H, Dv] in the inputs' type, or (o, DeltaRuleState) with `return_state`.
    """
    per_channel = isinstance(log_gate, Tensor) and log_gate.dim() == 4
    gates = "B T H Dv" if per_channel else "B T H"
    (q, k, v, log_gate), sizes = check_inputs(
        {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv"), "log_gate": (log_gate, gates)}
    )
    inputs = (q, k, v, log_gate if per_channel else log_gate[..., None])
    settings = DecayedDeltaRuleSettings(normalize_key)
    arguments: dict[str, Any] = {"initial_state": initial_state, "return_state": return_state, "cu_seqlens": cu_seqlens}
    if not per_channel:
        return run(_DECAYED, inputs, sizes, settings, **arguments, backend=backend, chunk_size=chunk_size)
    form = choose(_CHANNELS, backend, chunk_size, sizes, q)
    if form == "chunk" and backend == "auto" and chunk_size is None and sizes["T"] <= LOOP:
        form = "reference"
    if form != "chunk":
        return run(_CHANNELS, inputs, sizes, settings, **arguments, backend=form, chunk_size=None)
    return _by_rows(inputs, sizes, settings, **arguments, chunk_size=SMALL_CHUNK if chunk_size is None else chunk_size)


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
    gates = "B H Dv" if per_channel else "B H"
    (q, k, v, log_gate), sizes = check_inputs(
        {"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv"), "log_gate": (log_gate, gates)}
    )
    gate = log_gate if per_channel else log_gate[..., None]
    return run_step(_DECAYED, (q, k, v, gate), sizes, DecayedDeltaRuleSettings(normalize_key), state)


def _reference(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, state: DeltaRuleState, settings: DecayedDeltaRuleSettings
) -> tuple[Tensor, DeltaRuleState]:
    """One token at a time; log_gate [B, T, H, 1] or [B, T, H, Dv]."""
    S, t = state.S, state.t
    outputs = []
    for q_t, k_t, v_t, g_t in zip(*(x.to(S.dtype).unbind(1) for x in (q, k, v, log_gate)), strict=True):
        k_hat = unit(k_t)[0] if settings.normalize_key else k_t
        S, t = g_t.exp()[..., None] * S + outer(v_t - apply(S, k_hat), k_hat), t + 1
        outputs.append(apply(S, q_t))
    return torch.stack(outputs, 1).to(v.dtype), DeltaRuleState(S, t)


def _by_rows(
    inputs: tuple[Tensor, ...],
    sizes: Mapping[str, int],
    settings: DecayedDeltaRuleSettings,
    *,
    initial_state: DeltaRuleState | None,
    return_state: bool,
    cu_seqlens: Tensor | None,
    chunk_size: int,
) -> Any:
    """The chunk form with a gate per channel: rows of S do not mix, so that each can be a head with one value."""
    q, k, v, log_gate = inputs
    H, D, Dv = (sizes[letter] for letter in ("H", "D", "Dv"))
    whole = {**sizes, "B": check_packing(cu_seqlens, sizes["B"], sizes["T"], q.device)}
    state = begin(_CHANNELS, "initial_state", initial_state, whole, settings, q.device, q.dtype)
    rows = DeltaRuleState(state.S.reshape(-1, H * Dv, 1, D), state.t)
    o, rows = run(
        _DECAYED,
        (*(x.repeat_interleave(Dv, 2) for x in (q, k)), *(x.flatten(2)[..., None] for x in (v, log_gate))),
        {**sizes, "H": H * Dv, "Dv": 1},
        settings,
        initial_state=rows,
        return_state=True,
        cu_seqlens=cu_seqlens,
        backend="chunk",
        chunk_size=chunk_size,
    )
    o = o.reshape(v.shape)
    return (o, DeltaRuleState(rows.S.reshape(-1, H, Dv, D), rows.t)) if return_state else o


def _kernels(
    inputs: Sequence[Tensor],
    state: Sequence[Tensor],
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: DecayedDeltaRuleSettings,
    keep: bool,
) -> list[Tensor]:
    from varla.ops.triton import rows_triton

    q, k, v, log_gate = inputs
    k = unit(k.float())[0] if settings.normalize_key else k.float()
    gate = log_gate.float().exp().expand(v.shape)
    return rows_triton(q.float(), k, v, gate, None, *state, cu_seqlens, True, keep)  # type: ignore[no-any-return]


_LOOPS = {"reference": _reference}
# With a gate per channel there is nothing better on a GPU, however long the sequence.
_DECAYED = Mechanism("decayed_delta_rule", DeltaRuleState, _LOOPS, kernels=_kernels, kernel_tokens=KERNEL_TOKENS)
_CHANNELS = Mechanism("decayed_delta_rule", DeltaRuleState, _LOOPS, kernels=_kernels)
