"""The forms an operator can be computed in, and which of them can run here."""

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.autograd import forward_ad


@dataclass(frozen=True)
class Backend:
    """One form. `available` is False where it cannot run here, and `reason` then says why."""

    name: str
    summary: str
    available: bool
    reason: str | None = None


def _no_lapack() -> str | None:
    if torch._C.has_lapack:
        return None
    return "this build of PyTorch has no LAPACK, which the Cholesky factorisations need"


def _look_for_triton() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    if triton_interpreted():
        return None
    if not torch.cuda.is_available():
        return "no CUDA GPU was found (TRITON_INTERPRET=1, set before the start, runs the kernels slowly on the CPU)"
    if torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} is too old: the kernels need compute capability 8.0 or later"
    return None


_found = lru_cache(maxsize=1)(_look_for_triton)


def _no_triton() -> str | None:
    """What was found at the first look: launches do not look again."""
    return _found()


# torch.compile takes the answer as it finds it. This is what torch.compiler.assume_constant_result does, without its
# import of the whole compiler. The mark has no effect on a cached function: torch.compile traces what is inside.
for _each in (_look_for_triton, _no_triton):
    _each.__dict__["_dynamo_marked_constant"] = True


def triton_interpreted() -> bool:
    """Whether Triton is told to run kernels in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def has_tangent(tensors: Iterable[Tensor | None]) -> bool:
    """Whether one of them carries a derivative in forward mode."""
    return any(x is not None and forward_ad.unpack_dual(x).tangent is not None for x in tensors)  # type: ignore[no-untyped-call]


def transformed(tensors: Sequence[Tensor]) -> bool:
    """Whether derivatives are wanted that operators made of kernels do not have: forward mode, torch.func's.

    PyTorch would take such an operator for a constant.
    """
    if has_tangent(tensors):
        return True
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return not torch.compiler.is_compiling() and any(wrapped(x) for x in tensors)


def can_launch(like: Tensor, *others: Tensor) -> bool:
    """Whether a kernel can take a tensor like this one, on a GPU, and be derived as is wanted of it and the others."""
    return like.is_cuda and cannot_launch(like) is None and not transformed((like, *others))


# Below so many numbers PyTorch's own norms and gates are taken: all of them wait for the host there, and PyTorch's cost
# it less. A step of decoding has some hundreds.
FEW = 2**20


def worth_a_kernel(like: Tensor, *others: Tensor) -> bool:
    """Whether, beyond that, there is enough to do."""
    return like.numel() >= FEW and can_launch(like, *others)


def cannot_launch(like: Tensor, sizes: Mapping[str, int] | None = None, instead: str = "another form") -> str | None:
    """Why the kernels cannot take inputs like this one and of these sizes here, and what to use `instead`.

    None if they can.
    """
    missing: str | None = _no_triton()
    if missing is not None:
        return missing
    if not like.is_cuda and not triton_interpreted():
        return f"the inputs are on {like.device}, and the kernels run on CUDA GPUs"
    if like.dtype == torch.float64:
        return f"the kernels compute in float32; use {instead} for float64 inputs"
    for name, most in (("D", 128), ("Dv", 256)):
        if sizes is not None and not 1 <= sizes.get(name, 1) <= most:
            return f"the kernels take {name} from 1 to {most}, got {sizes[name]}; use {instead}"
    return None


_FORMS: dict[str, tuple[str, Callable[[], str | None]]] = {
    "reference": ("Algorithm 1, one token at a time: the specification", lambda: None),
    "chunk": ("the chunk-wise form in PyTorch, with a hand-written backward", _no_lapack),
    "triton": ("GPU kernels: vla in chunks, the others token by token, and in chunks where long", _look_for_triton),
}


def backends() -> dict[str, Backend]:
    """Every backend by name: what it is, whether it can run here, and if not, why not."""
    found = {}
    for name, (summary, missing) in _FORMS.items():
        reason = missing()
        found[name] = Backend(name, summary, reason is None, reason)
    return found
