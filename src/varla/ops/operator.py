"""An operator of PyTorch's dispatcher, made of a function: opaque to torch.compile, with a backward written by hand.

What torch.library.custom_op does, from its parts. That one imports PyTorch's compiler at the first call, which takes as
long as importing PyTorch itself, and looks for aliases among the results at every call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def operator(
    name: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Callable[..., Any],
    setup_context: Callable[..., None] | None = None,
) -> Any:
    """torch.ops.varla.<name>.default: `function`, whose annotations are its schema. It mutates and aliases nothing.

    `fake`: the same for shapes alone. `backward` and `setup_context`: see torch.library.register_autograd.
    """
    full = f"varla::{name}"
    schema = torch.library.infer_schema(function, mutates_args=())
    torch.library.define(full, schema, tags=(torch.Tag.pt2_compliant_tag,))
    torch.library.impl(full, "default", function)
    torch.library.register_fake(full, fake)
    torch.library.register_autograd(full, backward, setup_context=setup_context)
    return getattr(torch.ops.varla, name).default


def plain_gradients(
    form: Callable[..., Any], given: Sequence[Tensor | None], grads: Tensor | Sequence[Tensor]
) -> list[Tensor | None]:
    """Gradients of those `given` that are there, which can be derived again: what a backward without one of its own
    returns where such are wanted. `form` is the operator by PyTorch, whose results have `grads`."""
    leaves = [x if x is None or x.requires_grad else x.detach().requires_grad_() for x in given]
    there = [x for x in leaves if x is not None]
    found = iter(torch.autograd.grad(form(*leaves), there, grads, create_graph=True))
    return [None if x is None else next(found) for x in leaves]
