"""Linear attention (Katharopoulos et al. 2020): S <- S + v phi(k)^T, o = S phi(q) / (z . phi(q)).

It is `memory` that writes values, not errors, along the keys.
"""

from collections.abc import Mapping
from typing import Any, Literal, Unpack, overload

from torch import Tensor

from varla.ops import dispatch
from varla.ops.checks import check_inputs
from varla.ops.dispatch import CallOptions, Mechanism
from varla.ops.memory import kernel_form, memory_chunk, reference_form
from varla.ops.memory.ranks import memory_over_ranks
from varla.ops.memory.settings import MemorySettings
from varla.ops.state import LinearAttentionState


class LinearAttentionCall(CallOptions[LinearAttentionState], total=False):
    """The keywords of `varla.linear_attention`, for type checkers."""

    eps: float
    feature_map: str
    normalizer: bool


SCALARS = {"eps": 1e-4, "feature_map": "elu1", "normalizer": True}


@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_state: Literal[False] = False, **options: Unpack[LinearAttentionCall]
) -> Tensor: ...
@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_state: Literal[True], **options: Unpack[LinearAttentionCall]
) -> tuple[Tensor, LinearAttentionState]: ...
@dispatch.accepts(dispatch.CALL, SCALARS)
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_state: bool = False, **options: Unpack[LinearAttentionCall]
) -> Tensor | tuple[Tensor, LinearAttentionState]:
    """Causal linear attention. Arguments that `varla.vla` also has mean the same here.

    q, k [B, T, H, D], raw; v [B, T, H, Dv]. Backends are "reference", "chunk", "triton" (on a GPU; token by token for
    short sequences, else in chunks) and "auto".
    Returns o [B, T, H, Dv] in the inputs' dtype, or (o, LinearAttentionState) with `return_state`.
    """
    call, own = dispatch.split(options, SCALARS)
    (q, k, v), sizes = check_inputs({"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv")})
    return dispatch.run(_LINEAR, (q, k, v, None, None, None), sizes, _settings(own), return_state, **call)


def linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearAttentionState | None = None,
    *,
    eps: float = 1e-4,
    feature_map: str = "elu1",
    normalizer: bool = True,
) -> tuple[Tensor, LinearAttentionState]:
    """One token: q, k [B, H, D], v [B, H, Dv]. Returns (o [B, H, Dv], state); the given state is not changed."""
    settings = _settings({"eps": eps, "feature_map": feature_map, "normalizer": normalizer})
    (q, k, v), sizes = check_inputs({"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv")})
    return dispatch.run_step(_LINEAR, (q, k, v, None, None, None), sizes, settings, state)


def _settings(scalars: Mapping[str, Any]) -> tuple[MemorySettings]:
    return (dispatch.settings_of(MemorySettings, {**scalars, "normalize_key": False, "error": False}),)


_LINEAR = Mechanism(LinearAttentionState, reference_form, memory_chunk, kernel_form, ranks=memory_over_ranks)
