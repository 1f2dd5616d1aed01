"""The kernels that layers have beside their mechanism, against PyTorch's form in float64."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from varla.doctor.compare import errors, gradients
from varla.doctor.operators import drawn
from varla.ops import convolution, features, gate, norm, rotary

_LENGTHS = (20, 0, 41, 1, 70)  # of packed sequences
_T, _EPS, _BASE = sum(_LENGTHS), 1e-5, 1e4


@dataclass(frozen=True)
class Part:
    """One kernel family. `call` takes whether the kernel is to run, then the tensors of these `shapes`."""

    shapes: Mapping[str, tuple[int, ...]]
    call: Callable[..., Tensor]


def part_errors(name: str, device: str, dtype: str) -> dict[str, float]:
    """Relative errors of a kernel: of its outputs and of the gradients of all its inputs."""
    kind = getattr(torch, dtype)
    return errors(_results(PARTS[name], kind, device, True), _results(PARTS[name], kind, "cpu", False))


def _results(part: Part, kind: torch.dtype, device: str, kernel: bool) -> dict[str, Tensor]:
    """Outputs and gradients from inputs rounded to `kind`: of the kernel, or in float64."""
    rounded = {name: drawn(name, *shape).to(kind) for name, shape in part.shapes.items()}
    leaves = {name: x.to(device, kind if kernel else torch.float64).requires_grad_() for name, x in rounded.items()}
    results = {"o": part.call(kernel, **leaves)}
    results |= gradients(results, {f"d {name}": x for name, x in leaves.items()}, kind)
    return {name: x.detach().cpu() for name, x in results.items()}


def _convolution(kernel: bool, x: Tensor, weight: Tensor, bias: Tensor, before: Tensor) -> Tensor:
    form: Any = convolution.plain
    if kernel:
        from varla.ops.triton.convolution import convolve as form
    return form(x, weight, bias, before, torch.tensor([0, *accumulate(_LENGTHS)], device=x.device))


def _norm(kernel: bool, x: Tensor, weight: Tensor) -> Tensor:
    form: Any = norm.plain
    if kernel:
        from varla.ops.triton.norm import normalize as form
    return form(x, weight, _EPS, x.dtype)


def _rotary(kernel: bool, x: Tensor) -> Tensor:
    table = rotary.angles(torch.arange(x.shape[1], device=x.device)[None], x.shape[-1], _BASE, x.dtype)
    if kernel:
        from varla.ops.triton.rotary import turn

        return turn(x, *table, False)
    return rotary.plain(x, *table)


def _gate(kernel: bool, g: Tensor, x: Tensor) -> Tensor:
    form: Any = gate.plain
    if kernel:
        from varla.ops.triton.gate import gate as form
    return form(g, x)


def _features(kernel: bool, x: Tensor) -> Tensor:
    form: Any = features.scaled_features
    if kernel:
        from varla.ops.triton.features import scaled_features as form
    (y,) = form(x, None, "silu", True, 0.5, x.dtype)
    return y


PARTS = {
    "short convolution": Part(
        {"x": (1, _T, 40), "weight": (40, 4), "bias": (40,), "before": (len(_LENGTHS), 3, 40)}, _convolution
    ),
    "RMS norm": Part({"x": (2, 75, 200), "weight": (200,)}, _norm),
    "rotary positions": Part({"x": (2, 75, 3, 64)}, _rotary),
    "SwiGLU gate": Part({"g": (2, 75, 300), "x": (2, 75, 300)}, _gate),
    "features": Part({"x": (2, 75, 3, 48)}, _features),
}
