"""What all operators share: settings, default state and backend, packing. Every call goes through `run`."""

import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, Generic, TypedDict, TypeVar

import torch
from torch import Tensor

from varla.arguments import check_choice, check_count, check_flag, refuse_unknown
from varla.ops.backends import backends, cannot_launch, transformed
from varla.ops.chunk.op import ChunkOperator
from varla.ops.custom_op import Arguments
from varla.ops.packing import check_packing, sequence_bounds
from varla.ops.split import Split
from varla.ops.state import StateT, check_inplace, check_state

# Below this many tokens the loop is faster than the chunk form, which has a fixed cost (python -m benchmarks.cpu).
LOOP_TOKENS = 4

Held = list[Any]  # the tensors of a state, without the token count; None for those a mechanism does not keep
Inputs = Sequence[Any]  # tensors, or None for an optional input that was not given
Result = tuple[Tensor, Held]
Settings = TypeVar("Settings")
Function = TypeVar("Function", bound=Callable[..., Any])


class CallOptions(TypedDict, Generic[StateT], total=False):
    """Keywords of every operator, beside its scalars, for type checkers."""

    initial_state: StateT | None
    cu_seqlens: Tensor | Split | None
    backend: str
    chunk_size: int | None


CALL: Mapping[str, Any] = {"initial_state": None, "cu_seqlens": None, "backend": "auto", "chunk_size": None}


@dataclass(frozen=True)
class Mechanism(Generic[StateT]):
    """The parts of an operator: its state and its forms.

    `reference` takes (inputs [B, T, H, *], tensors of the state, token counts, *settings), all in the state's
    precision. `kernels` takes (call, tensors of the state, whether a backward follows) and imports Triton. Both return
    (outputs, tensors of the state). "auto" uses the kernels up to `kernel_tokens` tokens. `decode` takes one token
    [B, H, *], the state and the settings; it updates the state in place and returns the outputs. `ranks` takes
    (mechanism, inputs, sizes, settings, split, initial state, backend, chunk_size) and returns (outputs, state) of this
    rank's tokens.
    """

    state: type[StateT]
    reference: Callable[..., Result]
    chunk: ChunkOperator
    kernels: Callable[..., Result] | None = None
    kernel_tokens: float = math.inf
    decode: Callable[..., Tensor] | None = None
    ranks: Callable[..., tuple[Tensor, Any]] | None = None


def defaults_of(kind: type[Any]) -> dict[str, Any]:
    """The scalars of a settings class and their defaults."""
    return {field.name: field.default for field in fields(kind) if field.init}


def accepts(*defaults: Mapping[str, Any]) -> Callable[[Function], Function]:
    """Show these keywords instead of **options in a function's signature, for help() and editors."""

    def decorate(function: Function) -> Function:
        signature, only = inspect.signature(function), inspect.Parameter.KEYWORD_ONLY
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        shown = [inspect.Parameter(name, only, default=value) for each in defaults for name, value in each.items()]
        function.__signature__ = signature.replace(parameters=[*own, *shown])  # type: ignore[attr-defined]
        return function

    return decorate


def split(options: Mapping[str, Any], scalars: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split an operator's keywords into (keywords of the call, scalars). Raises a TypeError for any other name."""
    call, own = dict(CALL), {}
    for name, value in options.items():
        if name in call:
            call[name] = value
        elif name in scalars:
            own[name] = value
        else:
            refuse_unknown("option", name, [*CALL, "return_state", *scalars], error=TypeError)
    return call, own


def settings_of(kind: type[Settings], options: Mapping[str, Any]) -> Settings:
    """Settings with these values. They are cached, so values are checked once and not at every call."""
    if torch.compiler.is_compiling():
        return kind(**{name: constant(value) for name, value in options.items()})
    try:
        settings: Settings = _settings(kind, **options)  # type: ignore[arg-type]
        return settings
    except TypeError:  # an unhashable value, or one of a wrong type: without the cache, the class says which
        return kind(**options)


def constant(value: Any) -> Any:
    """The value, but an integer as a constant where torch.compile(dynamic=True) would take it for a size."""
    return operator.index(value) if isinstance(value, int) and not isinstance(value, bool) else value


@lru_cache(maxsize=1024, typed=True)
def _settings(kind: Any, **options: Any) -> Any:
    return kind(**options)


def run(
    mechanism: Mechanism[StateT],
    inputs: Inputs,
    sizes: Mapping[str, int],
    settings: Sequence[Any],
    return_state: bool,
    *,
    initial_state: StateT | None,
    cu_seqlens: Tensor | Split | None,
    backend: str,
    chunk_size: int | None,
) -> Any:
    """Run an operator on checked inputs and settings: outputs [B, T, H, *], or (outputs, state) with `return_state`."""
    if not isinstance(return_state, bool):
        check_flag("return_state", return_state)
    if isinstance(cu_seqlens, Split):
        cu_seqlens.check(sizes["B"], sizes["T"])
        if cu_seqlens.ranks > 1:
            assert mechanism.ranks is not None
            with torch.autocast(inputs[0].device.type, enabled=False):
                found = mechanism.ranks(
                    mechanism,
                    inputs,
                    sizes,
                    settings,
                    cu_seqlens,
                    initial_state,
                    backend=backend,
                    chunk_size=chunk_size,
                )
            return found if return_state else found[0]
        cu_seqlens = cu_seqlens.cu_seqlens
    first: Tensor = inputs[0]
    rows = sizes["B"] if cu_seqlens is None else check_packing(cu_seqlens, sizes["B"], sizes["T"], first.device)
    plain = "reference" if backend == "auto" and chunk_size is None and transformed(inputs) else backend
    form = choose(mechanism, plain, chunk_size, sizes, first)
    state = begin(mechanism, "initial_state", initial_state, {**sizes, "B": rows}, settings, inputs)
    tensors = list(state.tensors().values())
    held: Held = tensors[:-1]
    t, count = tensors[-1], len(held)
    held += [None] * (len(mechanism.chunk.state) - count)  # what this mechanism does not keep
    if form == "reference":
        o, held = _run_reference(mechanism, inputs, held, t, cu_seqlens, settings)
    else:
        if transformed((*inputs, *held)):
            raise RuntimeError(
                f"forward-mode derivatives and the transforms of torch.func are not supported by backend={form!r}; use "
                "backend='reference'"
            )
        keep = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (*inputs, *held))
        call = Arguments(inputs, t, cu_seqlens, settings)
        if form == "chunk":
            size = chunk_size if chunk_size is not None else default_chunk_size(sizes["D"])
            o, held = mechanism.chunk(call, held, size, keep)
        else:
            assert mechanism.kernels is not None
            o, held = mechanism.kernels(call, held, keep)
    if not return_state:
        return o
    t = t + (sizes["T"] if cu_seqlens is None else cu_seqlens.diff().to(t))
    return o, state.of((*held[:count], t))


def begin_split(
    mechanism: Mechanism[StateT],
    initial_state: StateT | None,
    sizes: Mapping[str, int],
    settings: Sequence[Any],
    inputs: Inputs,
    split: Split,
) -> StateT:
    """The states that the sequences of this rank began with. A given state has a row for each sequence of the split."""
    if initial_state is None:
        return begin(mechanism, "", None, {**sizes, "B": split.check(sizes["B"], sizes["T"])}, settings, inputs)
    rows = sizes["B"] if split.offsets is None else len(split.offsets) - 1
    return begin(mechanism, "initial_state", initial_state, {**sizes, "B": rows}, settings, inputs).map(split.rows)


def run_on_rank(
    mechanism: Mechanism[StateT],
    inputs: Inputs,
    sizes: Mapping[str, int],
    settings: Sequence[Any],
    before: StateT,
    split: Split,
    **call: Any,
) -> tuple[Tensor, StateT]:
    """(outputs of this rank's tokens, state), from the state before them."""
    found: tuple[Tensor, StateT] = run(
        mechanism, inputs, sizes, settings, True, initial_state=before, cu_seqlens=split.cu_seqlens, **call
    )
    return found


def fresh(call: Mapping[str, Any]) -> bool:
    """Whether all sequences of a call with these keywords begin with its tokens."""
    packing = call["cu_seqlens"]
    return call["initial_state"] is None and not (isinstance(packing, Split) and packing.ranks > 1)


def run_step(
    mechanism: Mechanism[StateT],
    inputs: Inputs,
    sizes: Mapping[str, int],
    settings: Sequence[Any],
    state: StateT | None,
    *,
    backend: str = "reference",
    inplace: bool = False,
) -> tuple[Tensor, StateT]:
    """One token [B, H, *] through the reference loop or the decode kernel: (outputs [B, H, *], state).

    With `inplace`, the given state is updated and returned.
    """
    check_flag("inplace", inplace)
    before = begin(mechanism, "state", state, sizes, settings, inputs)
    if inplace:
        check_inplace("state", before)
    if choose_step(mechanism, backend, sizes, inputs, before) == "triton":
        assert mechanism.decode is not None
        after = before
        if state is not None and not inplace:
            after = before.of(x.clone(memory_format=torch.contiguous_format) for x in before.tensors().values())
        return mechanism.decode(inputs, after, settings), after
    tokens = [None if x is None else x[:, None] for x in inputs]
    tensors = list(before.tensors().values())
    held: Held = tensors[:-1]
    t, count = tensors[-1], len(held)
    held += [None] * (len(mechanism.chunk.state) - count)
    o, held = _run_reference(mechanism, tokens, held, t, None, settings)
    after = before.of((*held[:count], t + 1))
    if inplace:
        for old, new in zip(before.tensors().values(), after.tensors().values(), strict=True):
            old.copy_(new)
        after = before
    return o[:, 0], after


def choose(
    mechanism: Mechanism[StateT], backend: str, chunk_size: int | None, sizes: Mapping[str, int], like: Tensor
) -> str:
    """The form to run on inputs like this one. A named backend that cannot run is an error, never replaced silently."""
    allowed = ("auto", "reference", "chunk", "triton") if mechanism.kernels else ("auto", "reference", "chunk")
    if backend not in allowed:
        check_choice("backend", backend, allowed)
    if chunk_size is not None:
        check_count("chunk_size", chunk_size, none_means="chosen by shape")
    if backend == "auto":
        wanted = like.is_cuda and mechanism.kernels is not None and chunk_size is None
        if wanted and mechanism.kernel_tokens < math.inf:  # asking would bind an exported graph to some lengths
            wanted = not torch.compiler.is_exporting() and sizes["T"] <= mechanism.kernel_tokens
        if wanted and cannot_launch(like, sizes, "backend='chunk'") is None:
            return "triton"
        backend = "reference" if chunk_size is None and loop_pays(sizes, LOOP_TOKENS - 1) else "chunk"
    elif backend != "chunk" and chunk_size is not None:
        why = "has its own" if backend == "triton" else "has no chunks"
        raise ValueError(f"chunk_size is for backend='chunk' (or 'auto'); backend={backend!r} {why}")
    reason = cannot_launch(like, sizes, "backend='chunk'") if backend == "triton" else backends()[backend].reason
    if reason is not None:
        raise RuntimeError(f"backend={backend!r} cannot run here: {reason}")
    return backend


def refuse_kernels(backend: str, instead: str) -> None:
    """Raise a RuntimeError for backend="triton": forgetting has no kernels."""
    if backend == "triton":
        raise RuntimeError(f"backend='triton' cannot run here: forgetting has no kernels yet; use backend={instead!r}")


def loop_pays(sizes: Mapping[str, int], tokens: int) -> bool:
    """Whether there are so few tokens that a loop over them is faster than chunks.

    A traced graph would unroll the loop, and be bound to its length: then only one token is looped over.
    """
    return sizes["T"] <= (1 if torch.compiler.is_compiling() else tokens)


def choose_step(
    mechanism: Mechanism[StateT], backend: str, sizes: Mapping[str, int], inputs: Inputs, state: StateT
) -> str:
    """The form to run one token in: "reference" or "triton". "auto" chooses the kernel on a GPU if it can run."""
    check_choice("backend", backend, ("auto", "reference", *(("triton",) if mechanism.decode else ())))
    first: Tensor = inputs[0]
    wanted = mechanism.decode and first.is_cuda
    if backend == "reference" or (backend == "auto" and not wanted):
        return "reference"
    reason = cannot_launch(first, sizes, "backend='reference'")
    tensors = (*inputs, *state.tensors().values())
    tracked = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
    if reason is None and (tracked or transformed(tensors)):
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
    settings: Sequence[Any],
    inputs: Inputs,
) -> StateT:
    """The given state, checked; or the initial state for these inputs: zeros, but A = I / lambda0."""
    like: Tensor = inputs[0]
    if state is not None:
        check_state(name, state, mechanism.state, sizes, like.device, like.dtype)
        return state
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    begun = mechanism.state.zeros(sizes, dtype, like.device)
    if "A" in begun.LAYOUT:  # line 2 of Algorithm 1
        strong = dict(zip(mechanism.chunk.inputs, inputs, strict=True)).get("strength?") is not None
        if torch.compiler.is_compiling():
            settings[0].check_precision(sizes["D"], dtype, strong)
        else:
            _check_precision(settings[0], sizes["D"], dtype, strong)
        begun.A.diagonal(dim1=-2, dim2=-1).fill_(1 / settings[0].lambda0)  # type: ignore[attr-defined]
    return begun


@lru_cache(maxsize=1024)
def _check_precision(settings: Any, D: int, dtype: torch.dtype, strong: bool) -> None:
    settings.check_precision(D, dtype, strong)


def _run_reference(
    mechanism: Mechanism[StateT],
    inputs: Inputs,
    held: Held,
    t: Tensor,
    cu_seqlens: Tensor | None,
    settings: Sequence[Any],
) -> Result:
    """The reference loop, in the state's precision. Packed sequences run one after the other."""
    like = inputs[mechanism.chunk.output_like]
    wide = [None if x is None else x.to(held[0].dtype) for x in inputs]
    bounds = None if cu_seqlens is None else zip(*sequence_bounds(cu_seqlens, like.shape[1]), strict=True)
    with torch.autocast(like.device.type, enabled=False):
        if bounds is None:
            o, held = _run_row(mechanism, wide, held, t, settings)
            return o.to(like.dtype), held
        outputs, finals = [], []
        for i, (start, length) in enumerate(bounds):
            part = [None if x is None else x[:, start : start + length] for x in wide]
            alone = [None if x is None else x[i : i + 1] for x in held]
            o, alone = _run_row(mechanism, part, alone, t[i : i + 1], settings)
            outputs.append(o)
            finals.append(alone)
    joined = [None if parts[0] is None else torch.cat(parts) for parts in zip(*finals, strict=True)]
    return torch.cat(outputs, 1).to(like.dtype), joined


def _run_row(mechanism: Mechanism[StateT], inputs: Inputs, held: Held, t: Tensor, settings: Sequence[Any]) -> Result:
    like = inputs[mechanism.chunk.output_like]
    if like.shape[1] == 0:
        return like.clone(), [None if x is None else x.clone() for x in held]
    return mechanism.reference(inputs, held, t, *settings)
