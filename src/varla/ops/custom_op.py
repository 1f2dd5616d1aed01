"""Functions as operators of PyTorch's dispatcher: opaque to torch.compile, with a backward written by hand.

This does what torch.library.custom_op does, from its parts. custom_op imports PyTorch's compiler at the first call,
which takes as long as importing PyTorch itself, and looks for aliases among the results at every call.

An operator's schema knows tensors and plain values. A frozen dataclass of settings among a function's arguments becomes
one typed argument for each of its fields, and is put together again behind the dispatcher.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, get_type_hints

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
    """torch.ops.varla.<name>.default as a function with the arguments of `function`, by position.

    `function` mutates and aliases nothing. Its `signature`, by default what its annotations say, is the schema. `fake`
    returns the same for shapes alone. `backward(ctx, *grads)` returns one gradient for each argument of `function`; see
    torch.library.register_autograd.
    """
    layout = _Layout(_resolved(function) if signature is None else signature)
    full = f"varla::{name}"

    def context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if setup_context is not None:
            layout.behind(lambda *nested: setup_context(ctx, nested, output))(*inputs)

    def spread(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        found = backward(ctx, *grads)
        return layout.spread(found if isinstance(found, tuple) else (found,))

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
    """The same for a function that updates the arguments `mutates` in place and has no gradients."""
    layout = _Layout(_resolved(function))

    registered = torch.library.custom_op(f"varla::{name}", layout.behind(function), mutates_args=mutates)
    registered.register_fake(layout.behind(fake))
    return layout.before(registered)


class _Layout:
    """Where settings stand among a function's arguments, and how they are spread over plain ones."""

    def __init__(self, signature: inspect.Signature):
        parameters: list[inspect.Parameter] = []
        # For each argument: the dataclass and the names of its fields, or None for a plain one.
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
        """A function with nested arguments that calls the operator with flat ones."""

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
        """A function with flat arguments that calls this one with nested ones, or with the first of them."""
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
        """Gradients of the operator's arguments from those of the function's: settings have none."""
        found: list[Any] = []
        for grad, kind in zip(grads, self.kinds, strict=True):
            found += [grad] if kind is None else [None] * len(kind[1])
        return tuple(found)


def _resolved(function: Callable[..., Any]) -> inspect.Signature:
    """The function's signature, its annotations as types."""
    signature, hints = inspect.signature(function), get_type_hints(function)
    parameters = [each.replace(annotation=hints[each.name]) for each in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=hints["return"])


def plain_gradients(
    form: Callable[..., Any], given: Sequence[Tensor | None], grads: Tensor | Sequence[Tensor]
) -> list[Tensor | None]:
    """Differentiable gradients of the non-None inputs `given` (for double backward).

    `form` computes the operator in plain PyTorch; `grads` are the gradients of its results.
    """
    leaves = [x if x is None or x.requires_grad else x.detach().requires_grad_() for x in given]
    there = [x for x in leaves if x is not None]
    found = iter(torch.autograd.grad(form(*leaves), there, grads, create_graph=True))
    return [None if x is None else next(found) for x in leaves]


def refuse_double_backward(backend: str) -> Callable[..., Any]:
    """The backward of a hand-written backward: an error that says what to use instead."""

    def refuse(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(
            f"double backward is not supported by backend={backend!r}: its gradients are written by hand and have no "
            "gradients of their own. Use backend='reference', which can be differentiated any number of times."
        )

    return refuse
