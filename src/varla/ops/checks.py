"""Checks of the users' tensors. Each raises a ValueError or TypeError that says what is wrong and what is allowed."""

import math
from collections.abc import Mapping
from functools import reduce
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn import Parameter

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_FLOAT_NAMES = "float16, bfloat16, float32 or float64"


# The gates of the operators [B, T, H] and the values they may have.
GATES = {
    "beta": (0.0, 2.0),
    "decay": (-math.inf, 0.0),
    "strength": (0.0, math.inf),
    "forget": (-math.inf, 0.0),
}


def check_inputs(inputs: Mapping[str, tuple[Tensor, str]]) -> tuple[list[Tensor], dict[str, int]]:
    """Check named tensors against their dimensions, e.g. {"q": (q, "B T H D"), ...}.

    Returns the tensors, all of one dtype, and the size of each dimension. Under autocast, dtypes may differ, because a
    layer mixes the outputs of several modules. The widest is used, as in PyTorch's own operators.
    """
    for name, (x, _) in inputs.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dtype not in FLOATS:
            raise TypeError(f"{name} must be {_FLOAT_NAMES}, got {dtype_of(x)}")
        if x.layout != torch.strided or x.is_nested:
            raise TypeError(f"{name} must be a dense tensor, got {'nested' if x.is_nested else x.layout}")
    sizes = check_shapes(inputs)
    for letter, size in sizes.items():
        if letter not in "BT" and size < 1:
            owner = next(name for name, (_, dims) in inputs.items() if letter in dims.split())
            raise ValueError(f"{owner} must have {letter} >= 1, got {list(inputs[owner][0].shape)}")
    tensors = [x for x, _ in inputs.values()]
    first, *others = inputs
    for name in others:
        x = inputs[name][0]
        if x.device != tensors[0].device:
            raise ValueError(f"{name} must be on the same device as {first} ({tensors[0].device}), got {x.device}")
        if x.dtype != tensors[0].dtype and not torch.is_autocast_enabled(x.device.type):
            raise TypeError(f"{name} must have the same dtype as {first} ({dtype_of(tensors[0])}), got {dtype_of(x)}")
    if tensors[0].is_meta:
        raise ValueError(f"{first} must hold data, got a tensor on the meta device")
    if any(x.dtype != tensors[0].dtype for x in tensors):
        widest = reduce(torch.promote_types, (x.dtype for x in tensors))
        tensors = [x.to(widest) for x in tensors]
    return tensors, sizes


def check_gated(
    inputs: Mapping[str, tuple[Tensor, str]], optional: Mapping[str, tuple[Tensor | None, str]]
) -> tuple[list[Any], dict[str, int]]:
    """`check_inputs` with optional tensors after the required ones. Gates get a last dimension of 1, None stays None.

    The values of gates are checked where that does not wait for a GPU: for tensors on the CPU, unless they are traced.
    """
    given = {name: (x, dims) for name, (x, dims) in optional.items() if x is not None}
    tensors, sizes = check_inputs({**inputs, **given})
    checked = dict(zip([*inputs, *given], tensors, strict=True))
    for name in checked.keys() & GATES.keys():
        _check_values(name, checked[name])
        checked[name] = checked[name][..., None]
    return [checked.get(name) for name in (*inputs, *optional)], sizes


def _check_values(name: str, x: Tensor) -> None:
    """Raise a ValueError if a gate has values that are not allowed. NaN passes: it makes outputs NaN."""
    values, (least, most) = host_range(x), GATES[name]
    if values is not None and (values[0] < least or values[1] > most):
        allowed = f"{least:g} to {most:g}" if math.isfinite(most - least) else f"at {'least' if most > 0 else 'most'} 0"
        raise ValueError(f"{name} must be {allowed}, got values from {values[0]:g} to {values[1]:g}")


def host_range(x: Tensor) -> tuple[float, float] | None:
    """The least and greatest value of a tensor on the CPU. None if they cannot be read: on a GPU, or while tracing."""
    if x.numel() == 0 or not readable(x):
        return None
    low, high = x.detach().aminmax()
    return float(low), float(high)


def readable(x: Tensor) -> bool:
    """Whether the values of a tensor can be read without waiting for a GPU: it is on the CPU and not traced."""
    if torch.compiler.is_compiling() or x.device.type != "cpu":
        return False
    if torch._C._len_torch_dispatch_stack() > 0:  # make_fx traces real tensors, too, and refuses to read their values
        return False
    return type(x) in (Tensor, Parameter) and not torch._C._functorch.is_functorch_wrapped_tensor(x)


def check_cu_seqlens(cu_seqlens: object, B: int, device: torch.device) -> TypeGuard[Tensor]:
    """Check dtype, shape and device of cu_seqlens. `packing.sequence_bounds` checks its values, on the host."""
    if not isinstance(cu_seqlens, Tensor):
        raise TypeError(f"cu_seqlens must be an integer tensor, got {type(cu_seqlens).__name__}")
    if cu_seqlens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"cu_seqlens must be int32 or int64, got {dtype_of(cu_seqlens)}")
    if cu_seqlens.layout != torch.strided or cu_seqlens.is_nested or cu_seqlens.is_meta:
        raise TypeError(f"cu_seqlens must be a dense tensor with data, got {cu_seqlens.layout} on {cu_seqlens.device}")
    if cu_seqlens.dim() != 1 or cu_seqlens.shape[0] < 2:
        raise ValueError(f"cu_seqlens must have shape [N + 1] for N >= 1 sequences, got {list(cu_seqlens.shape)}")
    if cu_seqlens.device not in (device, torch.device("cpu")):
        raise ValueError(f"cu_seqlens must be on {device} or on the CPU, got {cu_seqlens.device}")
    if B != 1:
        raise ValueError(f"cu_seqlens packs all sequences into one batch row: B must be 1, got {B}")
    return True


def check_untracked(why: str, tensors: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if autograd would track one of the tensors. The message begins with `why`."""
    for name, x in tensors.items():
        if torch.is_grad_enabled() and x.requires_grad:
            raise ValueError(f"{why}, and {name} requires grad; call it under torch.no_grad(), or detach {name}")


def check_shapes(inputs: Mapping[str, tuple[Tensor, str]]) -> dict[str, int]:
    """The size of each dimension letter. Raises a ValueError if two tensors disagree."""
    sizes: dict[str, int] = {}
    owner: dict[str, str] = {}
    for name, (x, dims) in inputs.items():
        letters = dims.split()
        if x.dim() != len(letters):
            raise ValueError(f"{name} must have {len(letters)} dimensions [{', '.join(letters)}], got {list(x.shape)}")
        for letter, size in zip(letters, x.shape, strict=True):
            if letter not in sizes:
                sizes[letter], owner[letter] = size, name
            elif sizes[letter] != size:
                raise ValueError(
                    f"{name} must have shape [{', '.join(letters)}] with {letter} = {sizes[letter]} as in "
                    f"{owner[letter]}, got {list(x.shape)}"
                )
    return sizes


def dtype_of(x: Tensor) -> str:
    """The name of the tensor's dtype."""
    return dtype_name(x.dtype)


def dtype_name(dtype: torch.dtype) -> str:
    """ "float32" rather than "torch.float32"."""
    return str(dtype).removeprefix("torch.")
