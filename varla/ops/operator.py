"""An operator of PyTorch's dispatcher, made of a function: opaque to torch.compile, with a backward written by hand.

What torch.library.custom_op does, from its parts. That one imports PyTorch's compiler at the first call, which takes as
long as importing PyTorch itself, and looks for aliases among the results at every call.
"""

from collections.abc import Callable
from typing import Any

import torch


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
