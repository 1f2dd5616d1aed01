"""The kernels of silu(g) * x against PyTorch's in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.cases import randn
from tests.ops.triton.cases import DEVICE, assert_fakes_agree, gpu, relative
from varla.ops.gate import gated, plain

pytest.importorskip("triton")

from varla.ops.backends import triton_interpreted, worth_a_kernel
from varla.ops.triton.gate import ELEMENTS, gate


def outcome(form: Any, shape: tuple[int, ...], device: str, dtype: torch.dtype, size: float = 1.0) -> dict[str, Tensor]:
    given = [(size * randn(*shape, seed=i)).bfloat16().to(device, dtype).requires_grad_() for i in (1, 2)]
    y = form(*given)
    dg, dx = torch.autograd.grad(y, given, randn(*shape, seed=3).bfloat16().to(device, dtype))
    return {"y": y.detach(), "dg": dg, "dx": dx}


def compared(shape: tuple[int, ...], dtype: torch.dtype = torch.float32, size: float = 1.0) -> dict[str, float]:
    got, wanted = outcome(gate, shape, DEVICE, dtype, size), outcome(plain, shape, "cpu", torch.float64, size)
    assert all(x.dtype == dtype for x in got.values())
    return {name: relative(got[name], wanted[name]) for name in wanted}


@pytest.mark.parametrize("shape", [(1,), (2, 3, 5), (ELEMENTS,), (3, ELEMENTS - 1), (2, ELEMENTS + 1)])
def test_every_size(shape: tuple[int, ...]) -> None:
    assert max(compared(shape).values()) <= 1e-6


@pytest.mark.parametrize("size", [1e-3, 20.0])
def test_small_and_large(size: float) -> None:
    assert max(compared((40, 25), size=size).values()) <= 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    assert max(compared((9, 33), dtype).values()) <= torch.finfo(dtype).eps


def test_nothing() -> None:
    g, x = (torch.zeros(2, 0, 5, device=DEVICE).requires_grad_() for _ in range(2))
    gate(g, x).sum().backward()
    assert g.grad.shape == x.grad.shape == g.shape


def test_inputs_in_any_memory_order() -> None:
    g, x = (randn(4, 6, seed=i).float().to(DEVICE) for i in (1, 2))
    assert torch.equal(gate(g.mT.contiguous().mT, x), gate(g, x))


def test_what_is_not_alike_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"g and x must have one shape and dtype, got \[2, 3\] torch.float32 and \[3\]"
    ):
        gate(torch.zeros(2, 3, device=DEVICE), torch.zeros(3, device=DEVICE))


def test_second_derivatives_are_the_plain_forms() -> None:
    def twice(form: Any, device: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [randn(3, 5, seed=i).to(device, dtype).requires_grad_() for i in (1, 2)]
        first = torch.autograd.grad(form(*leaves).square().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    for got, wanted in zip(twice(gate, DEVICE, torch.float32), twice(plain, "cpu", torch.float64), strict=True):
        assert relative(got, wanted) <= 1e-5


def test_the_operator_is_registered_right() -> None:
    g, x = (torch.randn(3, 5, device=DEVICE).mT.requires_grad_() for _ in range(2))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(torch.ops.varla.gate.default, (g, x), test_utils=checks)
    assert set(found.values()) == {"SUCCESS"}
    assert_fakes_agree(lambda: gate(g, x), [g, x], "gate", "gate_backward")


@pytest.mark.skipif(not triton_interpreted(), reason="on a GPU, compute-sanitizer does this")
@pytest.mark.parametrize("count", [1, ELEMENTS + 5])
def test_nothing_outside_its_tensors(count: int) -> None:
    from tests.ops.triton.bounds import watched

    with watched() as names:
        outcome(gate, (count,), DEVICE, torch.bfloat16)
    assert names == {"gate_forward", "gate_backward"}


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    def test_large(self, dtype: torch.dtype) -> None:
        bound = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
        assert max(compared((4, 2048, 1408), dtype).values()) <= bound

    @pytest.mark.parametrize("types", [(torch.float64, torch.float64), (torch.float32, torch.bfloat16)])
    def test_what_the_kernel_does_not_take_is_pytorchs(
        self, types: tuple[torch.dtype, torch.dtype], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(worth_a_kernel.__globals__, "MIN_KERNEL_ELEMENTS", 0)
        g, x = (randn(5, 7, seed=i).to("cuda", dtype) for i, dtype in enumerate(types))
        assert torch.equal(gated(g, x), plain(g, x))
