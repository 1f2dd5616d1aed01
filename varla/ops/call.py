"""What all operators share: defaults of state and backend, packing, dispatch. Every call goes through `run`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import torch
from torch import Tensor
from torch.autograd import forward_ad

from varla.ops.arguments import check_choice, check_count, check_flag
from varla.ops.backends import backends, triton_interpreted
from varla.ops.checks import check_state
from varla.ops.chunk import chunk, encode
from varla.ops.packing import check_packing, sequence_bounds
from varla.ops.settings import Settings
from varla.ops.state import StateT, state_dtype

# Below this many tokens the loop is quicker than setting a chunk up (python -m benchmarks.cpu).
SHORT = 4

Loop = Callable[..., tuple[Tensor, Any]]


@dataclass(frozen=True)
class Mechanism(Generic[StateT]):
    """An operator's parts: state, loops by backend, how a state begins if not as zeros, and whether it has kernels.

    A loop takes (*inputs [B, T, H, *], state, settings), all in the state's precision, and returns (outputs, state).
    """

    name: str
    state: type[StateT]
    loops: Mapping[str, Loop]
    initial: Callable[..., StateT] | None = None
    kernels: bool = False


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
        o, state = _run_operator(form, inputs, state, settings, cu_seqlens, size)
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
) -> tuple[Tensor, StateT]:
    """One token [B, H, *] through the reference loop: (outputs [B, H, Dv], state)."""
    device, dtype = inputs[0].device, inputs[0].dtype
    state = begin(mechanism, "state", state, sizes, settings, device, dtype)
    with torch.autocast(device.type, enabled=False):
        o, state = mechanism.loops["reference"](*(x[:, None] for x in inputs), state, settings)
    return o[:, 0], state


def choose(
    mechanism: Mechanism[StateT], backend: str, chunk_size: int | None, sizes: Mapping[str, int], like: Tensor
) -> str:
    """The form to run on inputs like this one. Nothing is swapped silently: a form that cannot do it is an error."""
    allowed = (*mechanism.loops, "chunk", *(("triton",) if mechanism.kernels else ()))
    check_choice("backend", backend, ("auto", *allowed))
    check_count("chunk_size", chunk_size, none_means="chosen by shape")
    if backend == "auto":
        fits = like.is_cuda and mechanism.kernels and chunk_size is None and _outside_kernels(sizes, like) is None
        if fits and backends()["triton"].available:
            return "triton"
        backend = "reference" if chunk_size is None and sizes["T"] < SHORT else "chunk"
    elif backend != "chunk" and chunk_size is not None:
        why = "has chunks of 64 tokens" if backend == "triton" else "has no chunks"
        raise ValueError(f"chunk_size is for backend='chunk' (or 'auto'); backend={backend!r} {why}")
    found = backends()[backend]
    reason = found.reason or (_outside_kernels(sizes, like) if backend == "triton" else None)
    if reason is not None:
        raise RuntimeError(f"backend={backend!r} cannot run here: {reason}")
    return backend


def _outside_kernels(sizes: Mapping[str, int], like: Tensor) -> str | None:
    """Why the kernels cannot take inputs like this one; None if they can."""
    if not like.is_cuda and not triton_interpreted():
        return f"the inputs are on {like.device}, and the kernels run on CUDA GPUs"
    if like.dtype == torch.float64:
        return "the kernels compute in float32; use backend='chunk' for float64 inputs"
    for name, most in (("D", 128), ("Dv", 256)):
        if not 1 <= sizes[name] <= most:
            return f"the kernels take {name} from 1 to {most}, got {sizes[name]}; use backend='chunk'"
    return None


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


def _run_operator(
    form: str, inputs: Sequence[Tensor], state: StateT, settings: Settings, cu_seqlens: Tensor | None, chunk_size: int
) -> tuple[Tensor, StateT]:
    *memory, t = state.tensors().values()
    if any(forward_ad.unpack_dual(x).tangent is not None for x in (*inputs, *memory)):  # type: ignore[no-untyped-call]
        # torch would take the operator for a constant, and its derivative for zero.
        raise RuntimeError(f"forward-mode derivatives are not supported by backend={form!r}; use backend='reference'")
    keep = torch.is_grad_enabled() and any(x.requires_grad for x in (*inputs, *memory))
    if form == "chunk":
        outputs = chunk(list(inputs), memory, t, cu_seqlens, encode(settings), chunk_size, keep)
    else:
        from varla.ops.triton import vla_triton

        outputs = vla_triton(list(inputs), memory, t, cu_seqlens, encode(settings), keep)
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
