"""The kernel of rotary positions against PyTorch's in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.cases import randn
from tests.ops.triton.cases import DEVICE, assert_fakes_agree, gpu, relative
from varla.ops.rotary import angles, plain

pytest.importorskip("triton")

from varla.ops.backends import triton_interpreted
from varla.ops.triton.rotary import turn


def kernel(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return turn(x, cos, sin, False)


def outcome(
    form: Any, shape: tuple[int, ...], device: str, dtype: torch.dtype, rows: int | None = None
) -> dict[str, Tensor]:
    """y and dx of x [B, T, H, D], at positions of B rows, or of one for all."""
    B, T, _, D = shape
    x = randn(*shape, seed=1).bfloat16().to(device, dtype).requires_grad_()
    position = 3 + torch.arange(T) + 1000 * torch.arange(rows or B)[:, None]
    y = form(x, *angles(position.to(device), D, 1e4, dtype))
    (dx,) = torch.autograd.grad(y, x, randn(*shape, seed=2).bfloat16().to(device, dtype))
    return {"y": y.detach(), "dx": dx}


def compared(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, rows: int | None = None) -> dict[str, float]:
    got, wanted = outcome(kernel, shape, DEVICE, dtype, rows), outcome(plain, shape, "cpu", torch.float64, rows)
    assert all(x.dtype == dtype for x in got.values())
    return {name: relative(got[name], wanted[name]) for name in wanted}


@pytest.mark.parametrize("rows", [None, 1])
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 9, 3, 6), (3, 70, 2, 64), (2, 5, 1, 40), (1, 3, 2, 256)])
def test_every_shape(shape: tuple[int, ...], rows: int | None) -> None:
    assert max(compared(shape, rows=rows).values()) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    assert max(compared((2, 9, 3, 16), dtype).values()) <= torch.finfo(dtype).eps


def test_nothing() -> None:
    x, table = torch.zeros(2, 0, 3, 4, device=DEVICE).requires_grad_(), torch.zeros(2, 0, 2, device=DEVICE)
    y = turn(x, table, table, False)
    y.sum().backward()
    assert y.shape == x.grad.shape == x.shape


def test_back_again() -> None:
    x = randn(2, 5, 3, 8, seed=1).float().to(DEVICE)
    table = angles(torch.arange(10, device=DEVICE).view(2, 5), 8, 1e4, x.dtype)
    assert relative(turn(turn(x, *table, False), *table, True), x) <= 1e-6


def test_inputs_in_any_memory_order() -> None:
    x = randn(2, 3, 5, 8, seed=1).float().to(DEVICE).transpose(1, 2)
    table = angles(torch.arange(10, device=DEVICE).view(2, 5), 8, 1e4, x.dtype)
    turned = [y.mT.contiguous().mT for y in table]
    assert torch.equal(turn(x, *turned, False), turn(x.contiguous(), *table, False))


def test_derivatives_of_derivatives() -> None:
    def twice(form: Any, device: str, dtype: torch.dtype) -> Tensor:
        x = randn(1, 3, 2, 4, seed=1).to(device, dtype).requires_grad_()
        table = angles(torch.arange(3, device=device)[None], 4, 1e4, dtype)
        (first,) = torch.autograd.grad(form(x, *table).pow(3).sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    assert relative(twice(kernel, DEVICE, torch.float32), twice(plain, "cpu", torch.float64)) <= 1e-5


def test_the_operator_is_registered_right() -> None:
    x = torch.randn(2, 3, 5, 8, device=DEVICE).transpose(1, 2).requires_grad_()
    table = angles(torch.arange(5, device=DEVICE)[None], 8, 1e4, x.dtype)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(torch.ops.varla.turn.default, (x, *table, False), test_utils=checks)
    assert set(found.values()) == {"SUCCESS"}
    assert_fakes_agree(lambda: turn(x, *table, False), [x], "turn")


@pytest.mark.skipif(not triton_interpreted(), reason="on a GPU, compute-sanitizer does this")
@pytest.mark.parametrize("shape", [(1, 1, 1, 2), (2, 9, 3, 6), (3, 70, 2, 64)])
def test_nothing_outside_its_tensors(shape: tuple[int, ...]) -> None:
    from tests.ops.triton.bounds import watched

    with watched() as names:
        outcome(kernel, shape, DEVICE, torch.float32, 1)
    assert names == {"rotate_rows"}


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    @pytest.mark.parametrize(("shape", "rows"), [((8, 2048, 8, 64), 1), ((3, 999, 5, 128), None)])
    def test_large(self, shape: tuple[int, ...], rows: int | None, dtype: torch.dtype) -> None:
        bound = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
        assert max(compared(shape, dtype, rows).values()) <= bound
