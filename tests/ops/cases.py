"""What the operators' tests share: seeded inputs, one call with all its gradients, how results are compared."""

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

import varla
from varla.ops.state import PRECISIONS

LENGTHS = (1, 2, 19, 20, 21, 67, 133)


def randn(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def vla_inputs(T: int, B: int = 2, H: int = 2, D: int = 5, Dv: int = 4, seed: int = 0) -> list[Tensor]:
    """q, k, v, u."""
    return [randn(B, T, H, d, seed=seed + i) for i, d in enumerate((D, D, Dv, D))]


def vla_state(B: int = 2, H: int = 2, D: int = 5, Dv: int = 4, seed: int = 100) -> varla.VLAState:
    """A state as if tokens had been seen, a different number in every row: each row has a refresh beat of its own."""
    X = randn(B, H, D, D, seed=seed + 1)
    A = X @ X.mT / D + torch.eye(D, dtype=X.dtype)
    z = randn(B, H, D, seed=seed + 2).abs()
    return varla.VLAState(randn(B, H, Dv, D, seed=seed), A, z, torch.arange(B) * 14 + 3)


def of_type(state: varla.State, dtype: torch.dtype) -> Any:
    """A copy of the state for inputs of this dtype, float32 or float64. z and t have dtypes of their own."""
    return state.of(x.to(PRECISIONS.get(name, dtype), copy=True) for name, x in state.tensors().items())


def with_gradients(
    operator: Callable[..., Any], inputs: Sequence[Tensor], state: varla.State | None, **options: Any
) -> dict[str, Tensor]:
    """Outputs, final state and the gradients of a random loss on all of them, by name."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    leaves = dict(enumerate(inputs))
    if state is not None:
        state = state.clone()
        for name, x in state.tensors().items():
            if x.is_floating_point():
                leaves[name] = x.requires_grad_()
    o, final = operator(*inputs, initial_state=state, return_state=True, **options)
    results = {"o": o, **final.tensors()}
    loss = sum(
        (x * randn(*x.shape, seed=200 + i).to(x)).sum() for i, x in enumerate(results.values()) if x.is_floating_point()
    )
    grads = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    for (name, leaf), grad in zip(leaves.items(), grads, strict=True):
        results[f"d {name}"] = torch.zeros_like(leaf) if grad is None else grad
    return {name: x.detach() for name, x in results.items()}


def error(got: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest magnitude wanted."""
    if wanted.numel() == 0:
        return 0.0
    got, wanted = got.detach().double(), wanted.detach().double()
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-300))


def assert_same(got: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    assert got.keys() == wanted.keys()
    for name in wanted:
        assert got[name].shape == wanted[name].shape, name
        assert got[name].dtype == wanted[name].dtype, name
        assert not got[name].isnan().any(), name
        assert error(got[name], wanted[name]) <= tolerance, name


def flat(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """An operator's arguments as its schema has them: settings as one value for each of their fields."""
    found: list[Any] = []
    for value in arguments:
        plain = not is_dataclass(value)
        found += [value] if plain else [getattr(value, each.name) for each in fields(value)]
    return tuple(found)
