"""What the VLA paper calls DeltaNet: S <- g S + (v - S k) k^T, o = S q, with a gate g in (0, 1] that decays all of S.

The delta rule of Yang et al. is `delta_rule`; this one writes with full strength and forgets everything alike.
"""

from typing import Any

import torch
from torch import Tensor

from varla.ops.call import Mechanism, run, run_step
from varla.ops.checks import check_inputs
from varla.ops.features import unit
from varla.ops.reference import apply, outer
from varla.ops.settings import DecayedDeltaRuleSettings
from varla.ops.state import DeltaRuleState


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
        log_gate: logarithm of the gate [B, T, H], at most 0 (for a sigmoid gate, `logsigmoid` of its input).
        normalize_key: divide keys by their length.
        initial_state, return_state, cu_seqlens, chunk_size: as for `varla.vla`.
        backend: "reference", "chunk" or "auto".

    Returns:
        o [B, T, H, Dv] in the inputs' type, or (o, DeltaRuleState) with `return_state`.
    """
    (q, k, v, log_gate), sizes = check_inputs(
        {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv"), "log_gate": (log_gate, "B T H")}
    )
    return run(
        _DECAYED,
        (q, k, v, log_gate[..., None]),
        sizes,
        DecayedDeltaRuleSettings(normalize_key),
        initial_state=initial_state,
        return_state=return_state,
        cu_seqlens=cu_seqlens,
        backend=backend,
        chunk_size=chunk_size,
    )


def decayed_delta_rule_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_gate: Tensor,
    state: DeltaRuleState | None = None,
    *,
    normalize_key: bool = True,
) -> tuple[Tensor, DeltaRuleState]:
    """One token: q, k [B, H, D], v [B, H, Dv], log_gate [B, H]. Returns (o [B, H, Dv], state)."""
    (q, k, v, log_gate), sizes = check_inputs(
        {"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv"), "log_gate": (log_gate, "B H")}
    )
    settings = DecayedDeltaRuleSettings(normalize_key)
    return run_step(_DECAYED, (q, k, v, log_gate[..., None]), sizes, settings, state)


def _reference(
    q: Tensor, k: Tensor, v: Tensor, log_gate: Tensor, state: DeltaRuleState, settings: DecayedDeltaRuleSettings
) -> tuple[Tensor, DeltaRuleState]:
    """One token at a time; log_gate [B, T, H, 1]."""
    S, t = state.S, state.t
    outputs = []
    for q_t, k_t, v_t, g_t in zip(*(x.to(S.dtype).unbind(1) for x in (q, k, v, log_gate)), strict=True):
        k_hat = unit(k_t)[0] if settings.normalize_key else k_t
        S, t = g_t.exp()[..., None] * S + outer(v_t - apply(S, k_hat), k_hat), t + 1
        outputs.append(apply(S, q_t))
    return torch.stack(outputs, 1).to(v.dtype), DeltaRuleState(S, t)


_DECAYED = Mechanism("decayed_delta_rule", DeltaRuleState, {"reference": _reference})
