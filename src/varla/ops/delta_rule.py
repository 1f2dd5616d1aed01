"""The delta rule (DeltaNet, Yang et al. 2024): S <- S (I - beta k k^T) + beta v k^T, o = S q.

It is `memory` that writes errors along the keys, with a write strength beta. The VLA paper calls another rule DeltaNet:
that one has a gate that decays S, and no beta (`decayed_delta_rule`).
"""

from typing import Any, Literal, Unpack, overload

from torch import Tensor

from varla.ops.checks import check_inputs
from varla.ops.dispatch import CALL, CallOptions, Mechanism, accepts, run, run_step, settings_of, split
from varla.ops.memory import kernel_form, memory_chunk, reference_form
from varla.ops.memory.settings import MemorySettings
from varla.ops.state import DeltaRuleState


class Call(CallOptions, total=False):
    """The keywords of `varla.delta_rule`, for type checkers."""

    feature_map: str
    normalize_query: bool
    normalize_key: bool
    scale: float | None
    initial_state: DeltaRuleState | None


SCALARS = {"feature_map": "identity", "normalize_query": True, "normalize_key": True, "scale": None}


@overload
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    return_state: Literal[False] = False,
    **options: Unpack[Call],
) -> Tensor: ...
@overload
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, return_state: Literal[True], **options: Unpack[Call]
) -> tuple[Tensor, DeltaRuleState]: ...
@accepts(CALL, SCALARS)
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, return_state: bool = False, **options: Unpack[Call]
) -> Tensor | tuple[Tensor, DeltaRuleState]:
    """The delta rule. Arguments that `varla.vla` also has mean the same here.

    Args:
        q: queries [B, T, H, D], raw.
        k: keys [B, T, H, D], raw.
        v: values [B, T, H, Dv].
        beta: write strengths [B, T, H], usually in (0, 1): 0 writes nothing, 1 replaces what the key held.
        feature_map: "identity" or "elu1", applied before the normalisations. (Yang et al. use SiLU: apply it to q and k
            yourself.)
        normalize_query: divide queries by their length.
        normalize_key: divide keys by their length. Without it the recurrence can diverge if |k|^2 beta > 2.
        scale: factor on the queries. None: D ** -0.5, as in flash-linear-attention.
        initial_state, return_state, cu_seqlens, chunk_size: as for `varla.vla`.
        backend: "reference", "chunk", "triton" (on a GPU; token by token for short sequences, else in chunks) or
            "auto".

    Returns:
        o [B, T, H, Dv] in the inputs' dtype, or (o, DeltaRuleState) with `return_state`.
    """
    call, own = split(options, SCALARS)
    (q, k, v, beta), sizes = check_inputs(
        {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv"), "beta": (beta, "B T H")}
    )
    inputs = (q, k, v, None, beta[..., None], None)
    return run(_DELTA, inputs, sizes, _settings(**own), return_state, **call)


def delta_rule_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: DeltaRuleState | None = None,
    *,
    feature_map: str = "identity",
    normalize_query: bool = True,
    normalize_key: bool = True,
    scale: float | None = None,
) -> tuple[Tensor, DeltaRuleState]:
    """One token: q, k [B, H, D], v [B, H, Dv], beta [B, H]. Returns (o [B, H, Dv], state); `state` is not changed."""
    settings = _settings(
        feature_map=feature_map, normalize_query=normalize_query, normalize_key=normalize_key, scale=scale
    )
    (q, k, v, beta), sizes = check_inputs(
        {"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv"), "beta": (beta, "B H")}
    )
    return run_step(_DELTA, (q, k, v, None, beta[..., None], None), sizes, settings, state)


def _settings(**scalars: Any) -> tuple[MemorySettings]:
    return (settings_of(MemorySettings, {**SCALARS, "normalizer": False, **scalars}),)


_DELTA = Mechanism(DeltaRuleState, reference_form, memory_chunk, kernel_form)
