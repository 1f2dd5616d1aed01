"""Registers functions as PyTorch operators: opaque to torch.compile, with a hand-written backward.

This does what torch.library.custom_op does, without two of its costs. custom_op imports PyTorch's compiler at the first
call, which takes as long as importing PyTorch itself, and checks the results for aliases at every call.

An operator's schema allows only tensors and plain values. A frozen dataclass of settings is therefore passed as one
typed argument for each of its fields, and rebuilt inside the operator.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple, get_type_hints

import torch
from torch import Tensor


def operator(
    name: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
    signature: inspect.Signature | None = None,
) -> Callable[..., Any]:
    """Register torch.ops.varla.<name> and return it as a function with the positional arguments of `function`.

    `function` must not mutate its arguments or return aliases of them. The schema comes from `signature`, by default
    from the function's annotations. `fake` returns empty results of the right shapes. `backward(ctx, *grads)` returns
    one gradient for each argument of `function`; see torch.library.register_autograd.
    """
    layout = _Layout(_resolved(function) if signature is None else signature)
    full = f"varla::{name}"

    nested = layout.behind(lambda *arguments: arguments)

    def context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if setup_context is not None:
            setup_context(ctx, nested(*inputs), output)

    def spread(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        dinputs = backward(ctx, *grads)
        return layout.spread(dinputs if isinstance(dinputs, tuple) else (dinputs,))

    run = layout.behind(function)
    schema = torch.library.infer_schema(run, mutates_args=())
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, "default", run)
    torch.library.register_fake(full, layout.behind(fake))
    torch.library.register_autograd(full, spread, setup_context=context)
    registered = getattr(torch.ops.varla, name).default
    return layout.before(registered)


def mutating_operator(
    name: str, function: Callable[..., Any], fake: Callable[..., Any], mutates: Sequence[str]
) -> Callable[..., Any]:
    """Like `operator`, for a function that updates the arguments `mutates` in place and has no gradients."""
    layout = _Layout(_resolved(function))
    registered = torch.library.custom_op(f"varla::{name}", layout.behind(function), mutates_args=mutates)
    registered.register_fake(layout.behind(fake))
    return layout.before(registered)


class _Layout:
    """Converts between a function's arguments, with settings objects, and the operator's flat arguments."""

    def __init__(self, signature: inspect.Signature):
        parameters: list[inspect.Parameter] = []
        # For each argument: (the settings dataclass, the names of its fields), or None for a plain argument.
        self.kinds: list[tuple[Callable[..., Any], tuple[str, ...]] | None] = []
        for each in signature.parameters.values():
            hint = each.annotation
            if not is_dataclass(hint):
                self.kinds.append(None)
                parameters.append(each)
                continue
            types_of = get_type_hints(hint)
            names = tuple(field.name for field in fields(hint))
            self.kinds.append((lru_cache(maxsize=256)(hint), names))  # type: ignore[arg-type]
            parameters += [
                inspect.Parameter(f"{each.name}_{name}", each.kind, annotation=types_of[name]) for name in names
            ]
        self.signature = signature.replace(parameters=parameters)

    def before(self, registered: Any) -> Callable[..., Any]:
        """A function that takes settings objects and calls the operator with flat arguments."""
        kinds = self.kinds

        def call(*arguments: Any) -> Any:
            flat: list[Any] = []
            for value, kind in zip(arguments, kinds, strict=True):
                if kind is None:
                    flat.append(value)
                else:
                    flat += [getattr(value, name) for name in kind[1]]
            return registered(*flat)

        call.registered = registered  # type: ignore[attr-defined]
        return call

    def behind(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that takes flat arguments and calls `function` with settings objects.

        Given fewer flat arguments, it passes on only the first ones.
        """
        kinds = self.kinds

        def call(*flat: Any) -> Any:
            arguments: list[Any] = []
            at = 0
            for kind in kinds:
                if at == len(flat):
                    break
                size = 1 if kind is None else len(kind[1])
                arguments.append(flat[at] if kind is None else kind[0](*flat[at : at + size]))
                at += size
            return function(*arguments)

        call.__signature__ = self.signature  # type: ignore[attr-defined]
        return call

    def spread(self, grads: Sequence[Any]) -> tuple[Any, ...]:
        """Gradients of the flat arguments from those of the function's arguments. Settings have none."""
        flat: list[Any] = []
        for grad, kind in zip(grads, self.kinds, strict=True):
            flat += [grad] if kind is None else [None] * len(kind[1])
        return tuple(flat)


def _resolved(function: Callable[..., Any]) -> inspect.Signature:
    """The function's signature, with annotations as types instead of strings."""
    signature, hints = inspect.signature(function), get_type_hints(function)
    parameters = [each.replace(annotation=hints[each.name]) for each in signature.parameters.values()]
    result = None if hints["return"] is type(None) else hints["return"]
    return signature.replace(parameters=parameters, return_annotation=result)


def plain_gradients(
    form: Callable[..., Any], inputs: Sequence[Tensor | None], grads: Tensor | Sequence[Tensor]
) -> list[Tensor | None]:
    """Differentiable gradients of the non-None inputs (for double backward).

    `form` computes the operator in plain PyTorch; `grads` are the gradients of its results.
    """
    leaves = [x if x is None or x.requires_grad else x.detach().requires_grad_() for x in inputs]
    present = [x for x in leaves if x is not None]
    dinputs = iter(torch.autograd.grad(form(*leaves), present, grads, create_graph=True))
    return [None if x is None else next(dinputs) for x in leaves]


def kernel_operator(
    name: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., list[Tensor]],
    plain: Callable[..., Any],
    tensors: int,
) -> Callable[..., Any]:
    """Like `operator`, for a kernel with a kernel as its backward. The first `tensors` arguments are tensors or None.

    `backward` takes the arguments of the function and the gradients of its results, and returns the gradients of the
    tensors that are not None. `plain` computes the function in PyTorch, for double backward.
    """

    def fake_backward(*arguments: Any) -> list[Tensor]:
        return [empty(x) for x in present(arguments[:tensors])]

    def setup_context(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.scalars = inputs[tensors:]
        ctx.save_for_backward(*inputs[:tensors])

    def derive(ctx: Any, grads: Any) -> tuple[Any, ...]:
        given = ctx.saved_tensors
        if torch.is_grad_enabled():  # double backward: the PyTorch form is differentiable
            dinputs = plain_gradients(lambda *x: plain(*x, *ctx.scalars), given, grads)
        else:
            found = iter(registered(*given, *ctx.scalars, grads))
            dinputs = [None if x is None else next(found) for x in given]
        return *dinputs, *[None] * len(ctx.scalars)

    registered = operator(f"{name}_backward", backward, fake_backward, refuse_double_backward("triton"))
    return operator(name, function, fake, derive, setup_context)


def refuse_double_backward(backend: str) -> Callable[..., Any]:
    """The backward of a hand-written backward: it raises an error that says what to use instead."""

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            f"double backward is not supported by backend={backend!r}: its gradients are written by hand and have no "
            "gradients of their own. Use backend='reference', which can be differentiated any number of times."
        )

    return refuse


def empty(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """An empty contiguous tensor like x."""
    return torch.empty_like(x, dtype=dtype, memory_format=torch.contiguous_format)


def present(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """The tensors that are not None."""
    return [x for x in tensors if x is not None]


class Arguments(NamedTuple):
    """Arguments of a form of an operator beside its state: t [rows] is the number of tokens seen before the call."""

    inputs: Sequence[Any]
    t: Tensor
    cu_seqlens: Tensor | None
    settings: Sequence[Any]


class StateOperator(ABC):
    """torch.ops.varla.<name>: one form of an operator that carries a state, with a hand-written backward.

    It takes (*inputs [B, T, H, *], *state, t, cu_seqlens, *settings, whether a backward follows). `inputs` and `state`
    name the tensors; a question mark means that a tensor may be None. `settings` are types: dataclasses or plain
    values. `output_like` is the index of the input whose shape the outputs have. The backward returns gradients of all
    inputs and state tensors.
    """

    def __init__(
        self, name: str, backend: str, inputs: str, state: str, output_like: int, settings: Sequence[type[Any]]
    ) -> None:
        """Register the operator (`self.forward`) and its backward."""
        self.inputs, self.state, self.output_like = inputs.split(), state.split(), output_like
        hints = {each.rstrip("?"): Tensor | None if each.endswith("?") else Tensor for each in self.inputs}
        held = {each.rstrip("?"): Tensor | None if each.endswith("?") else Tensor for each in self.state}
        scalars = {f"settings{i}": kind for i, kind in enumerate(settings)}
        shared = {"t": Tensor, "cu_seqlens": Tensor | None, **scalars}
        gradients = {"kept": Sequence[Tensor], "do": Tensor, "dfinal": Sequence[Tensor]}
        self._backward = operator(
            f"{name}_backward",
            self._run_backward,
            self._fake_backward,
            refuse_double_backward(backend),
            signature=_signature({**hints, **shared, **gradients}),
        )
        self.forward = operator(
            name,
            self.run,
            self._fake,
            self._derive,
            self._setup_context,
            _signature({**hints, **held, **shared, "keep": bool}),
        )

    @abstractmethod
    def run(self, *arguments: Any) -> list[Tensor]:
        """[outputs, *final state]; if a backward follows, also the tensors of `buffers`, filled."""

    @abstractmethod
    def run_backward(
        self, call: Arguments, kept: Sequence[Tensor], do: Tensor, dfinal: Sequence[Tensor]
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        """(gradients of the inputs, of the initial state). `kept` is what `run` and `also_kept` returned."""

    @abstractmethod
    def buffers(self, call: Arguments, state: Sequence[Any]) -> list[Tensor]:
        """Empty tensors for what the forward keeps for the backward. Their sizes depend on shapes alone."""

    def also_kept(self, state: Sequence[Any], results: Sequence[Tensor]) -> list[Tensor]:
        """What the backward reads beside the buffers: tensors of the initial state, and results of the forward."""
        return []

    def split(self, arguments: Sequence[Any]) -> tuple[Arguments, Sequence[Any], bool]:
        """The operator's arguments as (call, state, whether a backward follows)."""
        n, m = len(self.inputs), len(self.inputs) + len(self.state)
        t, cu_seqlens, *settings, keep = arguments[m:]
        return Arguments(arguments[:n], t, cu_seqlens, settings), arguments[n:m], keep

    def _fake(self, *arguments: Any) -> list[Tensor]:
        call, state, keep = self.split(arguments)
        kept = self.buffers(call, state) if keep else []
        return [empty(call.inputs[self.output_like]), *map(empty, present(state)), *kept]

    def _setup_context(self, ctx: Any, arguments: Sequence[Any], output: Sequence[Tensor]) -> None:
        call, state, _ = self.split(arguments)
        results = output[: 1 + len(present(state))]
        ctx.settings = call.settings
        ctx.given = [x is not None for x in (*call.inputs, *state)]
        ctx.results = [(x.shape, x.dtype) for x in results]
        ctx.set_materialize_grads(False)  # else PyTorch allocates zero gradients for everything kept
        kept = (*output[len(results) :], *self.also_kept(state, results))
        ctx.save_for_backward(*call.inputs, call.t, call.cu_seqlens, *kept)

    def _derive(self, ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
        n = len(self.inputs) + 2
        saved = ctx.saved_tensors  # read once: under gradient checkpointing, each reading may recompute them
        *inputs, t, cu_seqlens = saved[:n]
        do, *dfinal = (
            t.new_zeros(shape, dtype=dtype) if grad is None else grad
            for grad, (shape, dtype) in zip(grads, ctx.results, strict=False)
        )
        kept = list(saved[n:])
        found = iter(self._backward(*inputs, t, cu_seqlens, *ctx.settings, kept, do, dfinal))
        others = [None] * (3 + len(ctx.settings))  # t, cu_seqlens, settings, keep
        return *(next(found) if given else None for given in ctx.given), *others

    def _run_backward(self, *arguments: Any) -> list[Tensor]:
        """[*gradients of the non-None inputs, *gradients of the initial state]."""
        n = len(self.inputs)
        t, cu_seqlens, *settings, kept, do, dfinal = arguments[n:]
        dinputs, dstate = self.run_backward(Arguments(arguments[:n], t, cu_seqlens, settings), kept, do, dfinal)
        return [*present(dinputs), *dstate]

    def _fake_backward(self, *arguments: Any) -> list[Tensor]:
        return [empty(x) for x in (*present(arguments[: len(self.inputs)]), *arguments[-1])]


def _signature(types: dict[str, Any]) -> inspect.Signature:
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(name, kind, annotation=hint) for name, hint in types.items()]
    return inspect.Signature(parameters, return_annotation=list[Tensor])
