"""What all operators share: defaults of state and backend, packing, dispatch. Every call goes through `run`."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor

from varla.ops.arguments import check_choice, check_count, check_flag
from varla.ops.backends import backends, cannot_launch, has_tangent
from varla.ops.checks import check_inplace, check_state
from varla.ops.chunk import chunk, encode
from varla.ops.packing import check_packing, sequence_bounds
from varla.ops.settings import Settings
from varla.ops.state import StateT, state_dtype

# Below this many tokens the loop is quicker than setting a chunk up (python -m benchmarks.cpu).
SHORT = 4

Loop = Callable[..., tuple[Tensor, Any]]
Kernels = Callable[..., list[Tensor]]


@dataclass(frozen=True)
class Mechanism(Generic[StateT]):
    """An operator's parts: state, loops by backend, how a state begins if not as zeros, and its kernels if it has any.

    A loop takes (*inputs [B, T, H, *], state, settings), all in the state's precision, and returns (outputs, state).
    `kernels` takes (inputs, tensors of the state, token counts, cu_seqlens, settings, whether derivatives are wanted),
    imports Triton and returns [outputs, *final tensors, ...]; `kernel_tokens` is up to how many tokens "auto" takes
    it; `decodes` says that there is a kernel for one token as well.
    """

    name: str
    state: type[StateT]
    loops: Mapping[str, Loop]
    initial: Callable[..., StateT] | None = None
    kernels: Kernels | None = None
    kernel_tokens: float = math.inf
    decodes: bool = False


def run(
    mechanism: Mechanism[StateT],
    inputs: Sequence[Tensor],
    sizes: Mapping[str, int],
    settings: Settings,
    *,
    initial_state: StateT | None,
    return_state: bool,
    cu_seqlens: Tensor | None,
    backend: str,
    chunk_size: int | None,
) -> Any:
    """Outputs [B, T, H, Dv], with the final state if asked for. The inputs and settings have been checked."""
    check_flag("return_state", return_state)
    device, dtype = inputs[0].device, inputs[0].dtype
    rows = check_packing(cu_seqlens, sizes["B"], sizes["T"], device)
    form = choose(mechanism, backend, chunk_size, sizes, inputs[0])
    state = begin(mechanism, "initial_state", initial_state, {**sizes, "B": rows}, settings, device, dtype)

    if form in ("chunk", "triton"):
        size = chunk_size if chunk_size is not None else default_chunk_size(sizes["D"])
        kernels = mechanism.kernels if form == "triton" else None
        o, state = _run_operator(kernels, inputs, state, settings, cu_seqlens, size)
    else:
        with torch.autocast(device.type, enabled=False):
            o, state = _run_loop(mechanism.loops[form], inputs, state, settings, cu_seqlens)
    return (o, state) if return_state else o


def run_step(
    mechanism: Mechanism[StateT],
    inputs: Sequence[Tensor],
    sizes: Mapping[str, int],
    settings: Settings,
    state: StateT | None,
    *,
    backend: str = "reference",
    inplace: bool = False,
) -> tuple[Tensor, StateT]:
    """One token [B, H, *] through the reference loop or the decode kernel: (outputs [B, H, Dv], state).

    With `inplace`, that state is the one handed in, updated.
    """
    check_flag("inplace", inplace)
    device, dtype = inputs[0].device, inputs[0].dtype
    before = begin(mechanism, "state", state, sizes, settings, device, dtype)
    if inplace:
        check_inplace("state", before)
    if choose_step(mechanism, backend, sizes, inputs, before) == "triton":
        from varla.ops.triton.decode import decode_

        after = before
        if state is not None and not inplace:
            after = before.of(x.clone(memory_format=torch.contiguous_format) for x in before.tensors().values())
        return decode_(*inputs, *after.tensors().values(), encode(settings)), after
    with torch.autocast(device.type, enabled=False):
        o, after = mechanism.loops["reference"](*(x[:, None] for x in inputs), before, settings)
    if inplace:
        for old, new in zip(before.tensors().values(), after.tensors().values(), strict=True):
            old.copy_(new)
        after = before
    return o[:, 0], after


def choose(
    mechanism: Mechanism[StateT], backend: str, chunk_size: int | None, sizes: Mapping[str, int], like: Tensor
) -> str:
    """The form to run on inputs like this one. Nothing is swapped silently: a form that cannot do it is an error."""
    allowed = (*mechanism.loops, "chunk", *(("triton",) if mechanism.kernels else ()))
    check_choice("backend", backend, ("auto", *allowed))
    check_count("chunk_size", chunk_size, none_means="chosen by shape")
    if backend == "auto":
        wanted = mechanism.kernels is not None and sizes["T"] <= mechanism.kernel_tokens and chunk_size is None
        if like.is_cuda and wanted and cannot_launch(sizes, like, "chunk") is None:
            return "triton"
        backend = "reference" if chunk_size is None and sizes["T"] < SHORT else "chunk"
    elif backend != "chunk" and chunk_size is not None:
        why = "has its own" if backend == "triton" else "has no chunks"
        raise ValueError(f"chunk_size is for backend='chunk' (or 'auto'); backend={backend!r} {why}")
    reason = cannot_launch(sizes, like, "chunk") if backend == "triton" else backends()[backend].reason
    if reason is not None:
        raise RuntimeError(f"backend={backend!r} cannot run here: {reason}")
    return backend


def choose_step(
    mechanism: Mechanism[StateT], backend: str, sizes: Mapping[str, int], inputs: Sequence[Tensor], state: StateT
) -> str:
    """The form to run one token in: "reference" or "triton". "auto" is the kernel, on a GPU and where it can run."""
    check_choice("backend", backend, ("auto", "reference", *(("triton",) if mechanism.decodes else ())))
    if backend == "reference" or (backend == "auto" and not (mechanism.decodes and inputs[0].is_cuda)):
        return "reference"
    reason = cannot_launch(sizes, inputs[0], "reference")
    if reason is None and _differentiated((*inputs, *state.tensors().values())):
        reason = "the decode kernel has no derivatives; use backend='reference', or torch.no_grad()"
    if reason is not None and backend == "auto":
        return "reference"
    if reason is not None:
        raise RuntimeError(f"backend={backend!r} cannot run here: {reason}")
    return "triton"


def default_chunk_size(D: int) -> int:
    """Tokens in a chunk for keys of D dimensions."""
    return 32 if D <= 32 else 64


def begin(
    mechanism: Mechanism[StateT],
    name: str,
    state: StateT | None,
    sizes: Mapping[str, int],
    settings: Settings,
    device: torch.device,
    dtype: torch.dtype,
) -> StateT:
    """The state handed in, checked, or a fresh one."""
    if state is None:
        if mechanism.initial is None:
            return mechanism.state.zeros(sizes, state_dtype(dtype), device)
        return mechanism.initial(sizes, settings, state_dtype(dtype), device)
    check_state(name, state, mechanism.state, sizes, device, dtype)
    return state


def short(q: Tensor, S: Tensor, most: float) -> bool:
    """Whether sequences, packed into q [B, T, H, D] or not, have at most so many tokens each; S [sequences, ...]."""
    return q.shape[0] * q.shape[1] <= most * S.shape[0]


def _differentiated(tensors: Sequence[Tensor]) -> bool:
    """Whether derivatives of what is computed from these are wanted, in reverse or forward mode."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        return True
    return has_tangent(tensors)


def _run_operator(
    kernels: Kernels | None,
    inputs: Sequence[Tensor],
    state: StateT,
    settings: Settings,
    cu_seqlens: Tensor | None,
    chunk_size: int,
) -> tuple[Tensor, StateT]:
    *memory, t = state.tensors().values()
    form = "chunk" if kernels is None else "triton"
    if has_tangent((*inputs, *memory)):
        # torch would take the operator for a constant, and its derivative for zero.
        raise RuntimeError(f"forward-mode derivatives are not supported by backend={form!r}; use backend='reference'")
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *memory))
    if kernels is None:
        outputs = chunk(list(inputs), memory, t, cu_seqlens, encode(settings), chunk_size, keep)
    else:
        outputs = kernels(list(inputs), memory, t, cu_seqlens, settings, keep)
    t = t + (inputs[0].shape[1] if cu_seqlens is None else cu_seqlens.diff().to(t))
    return outputs[0], state.of((*outputs[1 : 1 + len(memory)], t))


def _run_loop(
    loop: Loop, inputs: Sequence[Tensor], state: StateT, settings: Settings, cu_seqlens: Tensor | None
) -> tuple[Tensor, StateT]:
    if cu_seqlens is None:
        return _run_row(loop, inputs, state, settings)
    outputs, states = [], []
    starts, lengths = sequence_bounds(cu_seqlens, inputs[0].shape[1])
    for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        part = [x[:, start : start + length] for x in inputs]
        alone = state.of(x[i : i + 1] for x in state.tensors().values())
        o, alone = _run_row(loop, part, alone, settings)
        outputs.append(o)
        states.append(alone.tensors().values())
    return torch.cat(outputs, 1), state.of(torch.cat(parts) for parts in zip(*states, strict=True))


def _run_row(loop: Loop, inputs: Sequence[Tensor], state: StateT, settings: Settings) -> tuple[Tensor, StateT]:
    if inputs[0].shape[1] == 0:
        return inputs[2].clone(), state
    o, state = loop(*inputs, state, settings)
    return o, state
