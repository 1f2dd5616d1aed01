"""Shapes by letter ("B T H D"): checking them, and saying in an error what came."""

from collections.abc import Mapping

import torch
from torch import Tensor


def check_shapes(inputs: Mapping[str, tuple[Tensor, str]]) -> dict[str, int]:
    """The size of each dimension letter; raises where two tensors disagree on one."""
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name, (x, dims) in inputs.items():
        letters = dims.split()
        if x.dim() != len(letters):
            raise ValueError(f"{name} must have {len(letters)} dimensions [{', '.join(letters)}], got {shape_of(x)}")
        for letter, size in zip(letters, x.shape, strict=True):
            if letter not in sizes:
                sizes[letter], owner[letter] = size, name
            elif sizes[letter] != size:
                raise ValueError(
                    f"{name} must have shape [{', '.join(letters)}] with {letter} = {sizes[letter]} as in "
                    f"{owner[letter]}, got {shape_of(x)}"
                )
    return sizes


def shape_of(x: Tensor) -> list[int]:
    """The shape as a plain list."""
    return list(x.shape)


def dtype_of(x: Tensor) -> str:
    """The name of the tensor's type."""
    return dtype_name(x.dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" rather than "torch.float32"."""
    return str(dtype).removeprefix("torch.")
