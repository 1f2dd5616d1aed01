"""A call with all its gradients, and how far its numbers are from those of the reference in float64."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

import varla
from varla.doctor.operators import OPERATORS, Operator, Shape, drawn, make_inputs, make_state
from varla.ops.state import PRECISIONS

BOUNDS = {"float32": 1e-4, "bfloat16": 1.5e-2}
STEPS = 5  # tokens that are decoded one by one

Results = dict[str, Tensor]
Call = Callable[..., tuple[Tensor, Any]]


class Mismatch(ValueError):
    """Results that cannot be compared, or that no error bound allows."""


def operator_errors(name: str, backend: str, device: str, dtype: str, shape: Shape) -> dict[str, float]:
    """Relative errors of an operator by one backend: of outputs, final state and all gradients."""
    operator, kind = OPERATORS[name], getattr(torch, dtype)
    return errors(_results(operator, shape, kind, device, _whole(operator, shape, backend)), _wanted(name, shape, kind))


def step_errors(name: str, backend: str, device: str, dtype: str, shape: Shape) -> dict[str, float]:
    """Relative errors of an operator that gets its tokens one by one: of outputs and final state."""
    operator, kind = OPERATORS[name], getattr(torch, dtype)
    wanted = _results(operator, shape, kind, "cpu", _whole(operator, shape, "reference"), wide=True, grads=False)
    return errors(_results(operator, shape, kind, device, _steps(operator, backend), grads=False), wanted)


@lru_cache(maxsize=4)
def _wanted(name: str, shape: Shape, kind: torch.dtype) -> Results:
    """What the reference computes in float64 on the CPU, from inputs rounded to `kind`."""
    operator = OPERATORS[name]
    return _results(operator, shape, kind, "cpu", _whole(operator, shape, "reference"), wide=True)


def _whole(operator: Operator, shape: Shape, backend: str) -> Call:
    """All tokens in one call."""

    def call(inputs: Mapping[str, Tensor], state: varla.State | None) -> tuple[Tensor, Any]:
        found = getattr(varla, operator.function)(
            **inputs, initial_state=state, return_state=True, cu_seqlens=shape.offsets(), backend=backend,
            **operator.options,
        )  # fmt: skip
        return found[0], found[1]

    return call


def _steps(operator: Operator, backend: str) -> Call:
    """One call for each token; the kernel's in place, as when a model decodes."""
    step = getattr(varla, f"{operator.function}_step")
    options: dict[str, Any] = dict(operator.options)
    if operator.step_takes_backend:
        options |= {"backend": backend, "inplace": backend == "triton"}

    def call(inputs: Mapping[str, Tensor], state: varla.State | None) -> tuple[Tensor, Any]:
        outputs = []
        for i in range(STEPS):
            o, state = step(**{name: x[:, i] for name, x in inputs.items()}, state=state, **options)
            outputs.append(o)
        return torch.stack(outputs, 1), state

    return call


def _results(
    operator: Operator,
    shape: Shape,
    kind: torch.dtype,
    device: str,
    call: Call,
    *,
    wide: bool = False,
    grads: bool = True,
) -> Results:
    """Outputs, final state and, with `grads`, gradients by name: "o", "S", "d q", "d S", ...

    Inputs are rounded to `kind`. With `wide` they are then converted to float64, and so is the state.
    """
    precise = torch.float64 if wide else torch.float32
    working = precise if wide else kind
    inputs = {name: x.to(kind).to(device, working) for name, x in make_inputs(operator, shape).items()}
    state = make_state(operator, shape)
    if state is not None:
        tensors = state.tensors().items()
        state = state.of(_rounded(x, PRECISIONS.get(name, precise)).to(device) for name, x in tensors)
    leaves = {f"d {name}": x for name, x in inputs.items()}
    leaves |= {} if state is None else {f"d {name}": x for name, x in state.tensors().items() if x.is_floating_point()}
    if grads:
        for x in leaves.values():
            x.requires_grad_()
    o, final = call(inputs, state)
    results = {"o": o, **final.tensors()}
    if grads:
        results |= gradients(results, leaves, kind)
        if "d A" in results:  # A is symmetric, so only the symmetric part of its gradient means something
            results["d A"] = (results["d A"] + results["d A"].mT) / 2
    if o.dtype != working:
        raise Mismatch(f"o is {o.dtype} for inputs of {working}")
    return {name: x.detach().cpu() for name, x in results.items()}


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor in `dtype`, with numbers that float32 holds: both sides of a comparison begin with the same."""
    return x.float().to(dtype) if x.is_floating_point() else x


def gradients(results: Mapping[str, Tensor], leaves: Mapping[str, Tensor], kind: torch.dtype) -> Results:
    """Gradients of a random sum of all results. Its weights are rounded to `kind`, as gradients from a loss are."""
    outputs = {name: x for name, x in results.items() if x.is_floating_point() and x.requires_grad}
    weights = [drawn(f"weight of {name}", *x.shape).to(kind).to(x.device, x.dtype) for name, x in outputs.items()]
    found = torch.autograd.grad(list(outputs.values()), list(leaves.values()), weights, allow_unused=True)
    return {
        name: torch.zeros_like(x) if grad is None else grad
        for (name, x), grad in zip(leaves.items(), found, strict=True)
    }


def errors(got: Results, wanted: Results) -> dict[str, float]:
    """Relative errors by norm. Raises a Mismatch for other shapes, NaN or infinity, and counts that differ."""
    return {name: _error(name, got[name], wanted[name]) for name in wanted}


def _error(name: str, got: Tensor, wanted: Tensor) -> float:
    if got.shape != wanted.shape:
        raise Mismatch(f"{name} has shape {list(got.shape)}, not {list(wanted.shape)}")
    if not got.is_floating_point():
        if not torch.equal(got, wanted):
            raise Mismatch(f"{name} is {got.tolist()}, not {wanted.tolist()}")
        return 0.0
    if not got.isfinite().all():
        raise Mismatch(f"{name} has NaN or infinity in {int((~got.isfinite()).sum())} of {got.numel()} numbers")
    size = float(wanted.norm())
    return float((got.double() - wanted).norm()) / (size or 1.0)
