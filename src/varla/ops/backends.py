"""The backends: the forms that an operator can be computed in, and which of them can run on this machine."""

import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd import forward_ad


@dataclass(frozen=True)
class Backend:
    """One form of the operators. `available` is False if it cannot run here; `reason` then says why."""

    name: str
    summary: str
    available: bool
    reason: str | None = None


def _no_lapack() -> str | None:
    if torch._C.has_lapack:
        return None
    return "this build of PyTorch has no LAPACK, which the Cholesky factorisations need"


def _no_triton() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed (pip install triton)"
    if triton_interpreted():
        return None
    if not torch.cuda.is_available():
        return "no CUDA GPU was found (TRITON_INTERPRET=1, set before the start, runs the kernels slowly on the CPU)"
    if torch.cuda.get_device_capability() < (8, 0):
        return f"{torch.cuda.get_device_name()} is too old: the kernels need compute capability 8.0 or later"
    return None


# torch.compile treats the result as a constant. torch.compiler.assume_constant_result sets the same mark, but imports
# the whole compiler.
_no_triton.__dict__["_dynamo_marked_constant"] = True


_triton_found: list[bool] = []  # not empty once Triton was found, so that later calls need not look again


def triton_interpreted() -> bool:
    """Whether TRITON_INTERPRET tells Triton to run kernels in its interpreter, on the CPU."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "on", "yes")


def transformed(tensors: Iterable[Tensor | None]) -> bool:
    """Whether the call needs what our operators do not have: forward-mode derivatives, or transforms of torch.func.

    For the former, PyTorch would treat an operator as a constant and return zero derivatives.
    """
    given = [x for x in tensors if x is not None]
    if any(forward_ad.unpack_dual(x).tangent is not None for x in given):  # type: ignore[no-untyped-call]
        return True
    functorch = torch._C._functorch
    level = None if torch.compiler.is_compiling() else functorch.peek_interpreter_stack()
    if level is None or level.key() == functorch.TransformType.Jvp:  # of forward mode, only tangents matter
        return False
    return any(functorch.is_functorch_wrapped_tensor(x) for x in given)


def can_launch(like: Tensor, *others: Tensor) -> bool:
    """Whether a kernel can run on the GPU for a tensor like this one, with the derivatives that the call needs."""
    return like.is_cuda and cannot_launch(like) is None and not transformed((like, *others))


# Below this many elements we use PyTorch's norm and gate: the call is launch-bound, and PyTorch launches faster
# (benchmarks/RESULTS.md).
MIN_KERNEL_ELEMENTS = 2**20


def worth_a_kernel(like: Tensor, *others: Tensor) -> bool:
    """Whether a kernel can run (`can_launch`) and the tensor is large enough to gain from it."""
    # The device first: asking for the size would bind an exported graph to some lengths.
    return like.is_cuda and like.numel() >= MIN_KERNEL_ELEMENTS and can_launch(like, *others)


def cannot_launch(like: Tensor, sizes: Mapping[str, int] | None = None, instead: str = "another form") -> str | None:
    """Why the kernels cannot run here on inputs like this one and of these sizes; None if they can.

    The reason tells the user what to use `instead`.
    """
    if not _triton_found:
        missing: str | None = _no_triton()
        if missing is not None:
            return missing
        _triton_found.append(True)
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
    "triton": ("GPU kernels: vla in chunks, the others token by token or, if long, in chunks", _no_triton),
}


def backends() -> dict[str, Backend]:
    """Every backend by name: what it is, whether it can run here, and if not, why."""
    result = {}
    for name, (summary, missing) in _FORMS.items():
        reason = missing()
        result[name] = Backend(name, summary, reason is None, reason)
    return result
