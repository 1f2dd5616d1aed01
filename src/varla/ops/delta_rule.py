"""The delta rule (DeltaNet, Yang et al. 2024): S <- d S (I - beta k k^T) + beta v k^T, o = S q.

It is `memory` that writes errors along the keys, with a write strength beta. With a decay d it is the rule of Gated
DeltaNet (Yang et al. 2025). The VLA paper calls another rule DeltaNet: that one has a gate that decays S after the
prediction, and no beta (`decayed_delta_rule`).
"""

from typing import Any, Literal, Unpack, overload

from torch import Tensor

from varla.ops import dispatch
from varla.ops.checks import check_gated
from varla.ops.dispatch import CallOptions, Mechanism
from varla.ops.memory import kernel_form, memory_chunk, reference_form
from varla.ops.memory.ranks import memory_over_ranks
from varla.ops.memory.settings import MemorySettings
from varla.ops.state import DeltaRuleState


class Call(CallOptions[DeltaRuleState], total=False):
    """The keywords of `varla.delta_rule`, for type checkers."""

    decay: Tensor | None
    feature_map: str
    normalize_query: bool
    normalize_key: bool
    scale: float | None


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
@dispatch.accepts({"decay": None}, dispatch.CALL, SCALARS)
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, return_state: bool = False, **options: Unpack[Call]
) -> Tensor | tuple[Tensor, DeltaRuleState]:
    """The delta rule; with `decay`, the gated one. Arguments that `varla.vla` also has mean the same here.

    Args:
        q: queries [B, T, H, D], raw.
        k: keys [B, T, H, D], raw.
        v: values [B, T, H, Dv].
        beta: write strengths [B, T, H], 0 to 2: 0 writes nothing, 1 replaces what the key held, and above 1 a direction
            of S can change its sign.
        decay: logarithm of the decay d of S [B, T, H], at most 0, applied before the prediction. None: no decay.
        feature_map: "identity", "elu1" or "silu" (as Yang et al.), applied before the normalisations.
        normalize_query: divide queries by their length.
        normalize_key: divide keys by their length. Without it the recurrence can diverge if |k|^2 beta > 2.
        scale: factor on the queries. None: D ** -0.5, as in flash-linear-attention.
        initial_state, return_state, cu_seqlens, chunk_size: as for `varla.vla`.
        backend: "reference", "chunk", "triton" (on a GPU; token by token for short sequences, else in chunks) or
            "auto".

    Returns:
        o [B, T, H, Dv] in the inputs' dtype, or (o, DeltaRuleState) with `return_state`.
    """
    call, own = dispatch.split(options, {"decay": None, **SCALARS})
    decay = own.pop("decay", None)
    inputs, sizes = _checked("B T H", q, k, v, beta, decay)
    return dispatch.run(_DELTA, inputs, sizes, _settings(**own), return_state, **call)


def delta_rule_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: DeltaRuleState | None = None,
    *,
    decay: Tensor | None = None,
    feature_map: str = "identity",
    normalize_query: bool = True,
    normalize_key: bool = True,
    scale: float | None = None,
) -> tuple[Tensor, DeltaRuleState]:
    """One token: q, k [B, H, D], v [B, H, Dv], beta, decay [B, H]. Returns (o, state); `state` is not changed."""
    settings = _settings(
        feature_map=feature_map, normalize_query=normalize_query, normalize_key=normalize_key, scale=scale
    )
    inputs, sizes = _checked("B H", q, k, v, beta, decay)
    return dispatch.run_step(_DELTA, inputs, sizes, settings, state)


def _checked(
    where: str, q: Tensor, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor | None
) -> tuple[list[Any], dict[str, int]]:
    """(the memory's inputs, sizes). The tensors begin with dimensions `where`."""
    wide = f"{where} D"
    (q, k, v, beta, decay), sizes = check_gated(
        {"q": (q, wide), "k": (k, wide), "v": (v, f"{where} Dv"), "beta": (beta, where)}, {"decay": (decay, where)}
    )
    return [q, k, v, None, beta, decay], sizes


def _settings(**scalars: Any) -> tuple[MemorySettings]:
    return (dispatch.settings_of(MemorySettings, {**SCALARS, "normalizer": False, **scalars}),)


_DELTA = Mechanism(DeltaRuleState, reference_form, memory_chunk, kernel_form, ranks=memory_over_ranks)
