"""Linear attention (Katharopoulos et al. 2020): S <- S + v phi(k)^T, o = S phi(q) / (z . phi(q)).

The memory that writes values, not errors, along the keys themselves.
"""

from typing import Literal, TypedDict, Unpack, overload

from torch import Tensor

from varla.ops.checks import check_inputs
from varla.ops.dispatch import CallOptions, Mechanism, run, run_step, settings_of
from varla.ops.memory import kernel_form, memory_chunk, reference_form
from varla.ops.memory.settings import MemorySettings
from varla.ops.state import LinearAttentionState


class LinearAttentionOptions(TypedDict, total=False):
    """The scalars of linear attention, for type checkers."""

    eps: float
    feature_map: str
    normalizer: bool


class LinearAttentionCall(LinearAttentionOptions, CallOptions, total=False):
    """The keywords of `varla.linear_attention`, for type checkers."""

    initial_state: LinearAttentionState | None


@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_state: Literal[False] = False, **options: Unpack[LinearAttentionCall]
) -> Tensor: ...
@overload
def linear_attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_state: Literal[True], **options: Unpack[LinearAttentionCall]
) -> tuple[Tensor, LinearAttentionState]: ...
def linear_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    eps: float = 1e-4,
    feature_map: str = "elu1",
    normalizer: bool = True,
    initial_state: LinearAttentionState | None = None,
    return_state: bool = False,
    cu_seqlens: Tensor | None = None,
    backend: str = "auto",
    chunk_size: int | None = None,
) -> Tensor | tuple[Tensor, LinearAttentionState]:
    """Causal linear attention in the contract of `varla.vla`, whose arguments of the same name mean the same.

    q, k [B, T, H, D], raw; v [B, T, H, Dv]. Backends "reference", "chunk", "triton" (on a GPU; one token after the
    other, or in chunks where sequences are long) and "auto".
    Returns o [B, T, H, Dv] in the inputs' type, or (o, LinearAttentionState) with `return_state`.
    """
    settings = _settings(eps=eps, feature_map=feature_map, normalizer=normalizer)
    (q, k, v), sizes = check_inputs({"q": (q, "B T H D"), "k": (k, "B T H D"), "v": (v, "B T H Dv")})
    return run(  # type: ignore[no-any-return]
        _LINEAR, (q, k, v, None, None, None), sizes, (settings,), initial_state=initial_state,
        return_state=return_state, cu_seqlens=cu_seqlens, backend=backend, chunk_size=chunk_size,
    )  # fmt: skip


def linear_attention_step(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: LinearAttentionState | None = None,
    **options: Unpack[LinearAttentionOptions],
) -> tuple[Tensor, LinearAttentionState]:
    """One token: q, k [B, H, D], v [B, H, Dv]. Returns (o [B, H, Dv], state); the state handed in is not changed."""
    settings = _settings(**options)
    (q, k, v), sizes = check_inputs({"q": (q, "B H D"), "k": (k, "B H D"), "v": (v, "B H Dv")})
    return run_step(_LINEAR, (q, k, v, None, None, None), sizes, (settings,), state)


def _settings(**options: Unpack[LinearAttentionOptions]) -> MemorySettings:
    return settings_of(MemorySettings, {**options, "normalize_key": False, "error": False})


_LINEAR = Mechanism(LinearAttentionState, reference_form, memory_chunk, kernel_form)
