"""The delta rule (DeltaNet, Yang et al. 2024): S <- S (I - beta k k^T) + beta v k^T, o = S q.

The memory that writes errors along the keys themselves, with a strength. This is not what the VLA paper calls DeltaNet,
which decays S by a gate and writes with full strength.
"""

from typing import Literal, TypedDict, Unpack, overload

from torch import Tensor

from varla.ops.checks import check_inputs
from varla.ops.dispatch import CallOptions, Mechanism, run, run_step, settings_of
from varla.ops.memory import kernel_form, memory_chunk, reference_form
from varla.ops.memory.settings import MemorySettings
from varla.ops.state import DeltaRuleState


class DeltaRuleOptions(TypedDict, total=False):
    """The scalars of the delta rule, for type checkers."""

    feature_map: str
    normalize_query: bool
    normalize_key: bool
    scale: float | None


class DeltaRuleCall(DeltaRuleOptions, CallOptions, total=False):
    """The keywords of `varla.delta_rule`, for type checkers."""

    initial_state: DeltaRuleState | None


@overload
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    return_state: Literal[False] = False,
    **options: Unpack[DeltaRuleCall],
) -> Tensor: ...
@overload
def delta_rule(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *, return_state: Literal[True], **options: Unpack[DeltaRuleCall]
) -> tuple[Tensor, DeltaRuleState]: ...
def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    *,
    feature_map: str = "identity",
    normalize_query: bool = True,
    normalize_key: bool = True,
    scale: float | None = None,
    initial_state: DeltaRuleState | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    chunk_size: int | None = None,
) -> Tensor | tuple[Tensor, DeltaRuleState]:
    """The delta rule in the contract of `varla.vla`, whose arguments of the same name mean the same.

    Args:
        q: queries [B, T, H, D], raw.
        k: keys [B, T, H, D], raw.
        v: values [B, T, H, Dv].
        beta: write strengths [B, T, H], usually in (0, 1): 0 writes nothing, 1 replaces what the key held.
        feature_map: "identity" or "elu1", before the normalisations. (Yang et al. use SiLU: apply it to q and k.)
        normalize_query: divide queries by their length.
        normalize_key: divide keys by their length; without it the recurrence can diverge for |k|^2 beta > 2.
        scale: factor on the queries. None: D ** -0.5, as in flash-linear-attention.
        initial_state, return_state, cu_seqlens, chunk_size: as for `varla.vla`.
        backend: "reference", "chunk", "triton" (on a GPU; one token after the other, or in chunks where sequences are
            long) or "auto".

    Returns:
        o [B, T, H, Dv] in the inputs' type, or (o, DeltaRuleState) with `return_state`.
    """
    settings = _settings(
        feature_map=feature_map, normalize_query=normalize_query, normalize_key=normalize_key, scale=scale
    )
    (q, k, v, beta), sizes = check_inputs(
        {"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv"), "beta": (beta, "B T H")}
    )
    return run(  # type: ignore[no-any-return]
        _DELTA, (q, k, v, None, beta[..., None], None), sizes, (settings,), initial_state=initial_state,
        return_state=return_state, cu_seqlens=cu_seqlens, backend=backend, chunk_size=chunk_size,
    )  # fmt: skip


def delta_rule_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    state: DeltaRuleState | None = None,
    **options: Unpack[DeltaRuleOptions],
) -> tuple[Tensor, DeltaRuleState]:
    """One token: q, k [B, H, D], v [B, H, Dv], beta [B, H]. Returns (o [B, H, Dv], state); `state` is not changed."""
    settings = _settings(**options)
    (q, k, v, beta), sizes = check_inputs(
        {"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv"), "beta": (beta, "B H")}
    )
    return run_step(_DELTA, (q, k, v, None, beta[..., None], None), sizes, (settings,), state)


def _settings(**options: Unpack[DeltaRuleOptions]) -> MemorySettings:
    defaults = {"feature_map": "identity", "normalize_query": True, "scale": None, "normalizer": False}
    return settings_of(MemorySettings, {**defaults, **options})


_DELTA = Mechanism(DeltaRuleState, reference_form, memory_chunk, kernel_form)
