"""The kernels of the RMS norm against PyTorch's in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.cases import randn
from tests.ops.triton.cases import DEVICE, assert_fakes_agree, gpu, relative
from varla.ops.norm import WIDEST, plain, rms_norm

pytest.importorskip("triton")

from varla.ops.backends import MIN_KERNEL_ELEMENTS, triton_interpreted, worth_a_kernel
from varla.ops.triton import norm
from varla.ops.triton.norm import ELEMENTS, TILES, normalize

EPS = 1e-5
ROWS = ELEMENTS // 64  # of a tile, 64 wide


def outcome(
    form: Any, shape: tuple[int, ...], device: str, types: tuple[torch.dtype, torch.dtype, torch.dtype], size: float = 1
) -> dict[str, Tensor]:
    """y and gradients of x [*, N] and weight [N]; `types` of x, weight and y."""
    x, weight = (size * randn(*shape, seed=1)).float(), randn(shape[-1], seed=2).bfloat16()
    given = [y.to(device, dtype).requires_grad_() for y, dtype in zip((x, weight), types, strict=False)]
    y = form(*given, EPS, types[2])
    dx, dweight = torch.autograd.grad(y, given, randn(*y.shape, seed=3).bfloat16().to(device, types[2]))
    return {"y": y.detach(), "dx": dx, "dweight": dweight}


def compared(shape: tuple[int, ...], types: tuple[torch.dtype, ...], **options: Any) -> dict[str, float]:
    got = outcome(normalize, shape, DEVICE, types, **options)
    wanted = outcome(plain, shape, "cpu", (torch.float64,) * 3, **options)
    assert [got[name].dtype for name in ("dx", "dweight", "y")] == list(types)
    assert all(got[name].shape == wanted[name].shape for name in wanted)
    return {name: relative(got[name], wanted[name]) for name in wanted}


FLOAT = (torch.float32,) * 3


@pytest.mark.parametrize("N", [2, 7, 64, 100, ELEMENTS, ELEMENTS + 1])
def test_every_width(N: int) -> None:
    assert max(compared((2, 3, N), FLOAT).values()) <= 1e-6


def test_a_row_of_one_has_hardly_a_slope() -> None:
    errors = compared((6, 1), FLOAT)
    assert errors["y"] <= 1e-6
    assert errors["dx"] <= 1e-3  # of EPS / x ** 3: what is left of 1 / x - x ** 2 / x ** 3


@pytest.mark.parametrize(
    "rows", [1, 2, ROWS - 1, ROWS, ROWS + 1, ROWS * TILES - 1, ROWS * TILES + 1, 3 * ROWS * TILES + 33]
)
def test_every_number_of_rows(rows: int) -> None:
    assert max(compared((rows, 64), FLOAT).values()) <= 1e-6


@pytest.mark.parametrize("size", [1e-8, 1e-3, 1e15])
def test_every_length(size: float) -> None:
    assert max(compared((5, 24), FLOAT, size=size).values()) <= 1e-6


@pytest.mark.parametrize(
    "types",
    [
        (torch.float32, torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.float16, torch.float32, torch.float32),
    ],
)
def test_types(types: tuple[torch.dtype, ...]) -> None:
    errors = compared((40, 48), types)
    assert max(errors.values()) <= 4e-3


def test_zeros_stay_zeros() -> None:
    x, weight = torch.zeros(3, 5, device=DEVICE).requires_grad_(), torch.ones(5, device=DEVICE)
    y = normalize(x, weight, EPS, torch.float32)
    y.sum().backward()
    assert not y.any()
    assert torch.allclose(x.grad, torch.full_like(x, EPS**-0.5))


def test_not_a_number_stays_in_its_row() -> None:
    x = torch.randn(3, 5, device=DEVICE)
    x[1, 2] = torch.nan
    y = normalize(x, torch.ones(5, device=DEVICE), EPS, torch.float32)
    assert y.isnan().any(1).tolist() == [False, True, False]


def test_rows_that_are_not_there_have_no_share_even_without_an_epsilon() -> None:
    x, weight = torch.randn(3, 7, device=DEVICE), torch.randn(7, device=DEVICE).requires_grad_()
    normalize(x, weight, 1e-60, torch.float32).sum().backward()
    assert relative(weight.grad, plain(x.cpu(), torch.ones(7), 1e-60, torch.float32).sum(0)) <= 1e-5


def test_a_weight_of_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight must have shape \[8\], as wide as x, got \[4\]"):
        normalize(torch.zeros(3, 8, device=DEVICE), torch.ones(4, device=DEVICE), EPS, torch.float32)


def test_gradients_that_are_to_be_derived_are_as_exact() -> None:
    x, weight = (randn(*shape, seed=1).float().to(DEVICE).requires_grad_() for shape in ((4, 70), (70,)))
    y = normalize(x, weight, EPS, torch.bfloat16)
    dy = randn(4, 70, seed=2).bfloat16().to(DEVICE)
    once = torch.autograd.grad(y, (x, weight), dy, retain_graph=True)
    again = torch.autograd.grad(y, (x, weight), dy, create_graph=True)
    assert all(relative(first, second) <= 1e-6 for first, second in zip(once, again, strict=True))


def test_nothing() -> None:
    x, weight = torch.zeros(2, 0, 5, device=DEVICE).requires_grad_(), torch.ones(5, device=DEVICE).requires_grad_()
    y = normalize(x, weight, EPS, torch.bfloat16)
    y.sum().backward()
    assert (y.shape, y.dtype) == (x.shape, torch.bfloat16)
    assert not weight.grad.any()


def test_inputs_in_any_memory_order() -> None:
    x, weight = randn(4, 6, seed=1).float().to(DEVICE), randn(6, 2, seed=2).float().to(DEVICE)[:, 0]
    turned = x.mT.contiguous().mT
    assert torch.equal(normalize(turned, weight, EPS, torch.float32), normalize(x, weight.clone(), EPS, torch.float32))


def test_second_derivatives_are_the_plain_forms() -> None:
    def twice(form: Any, device: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [randn(*shape, seed=1).to(device, dtype).requires_grad_() for shape in ((3, 5), (5,))]
        first = torch.autograd.grad(form(*leaves, EPS, dtype).square().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    for got, wanted in zip(twice(normalize, DEVICE, torch.float32), twice(plain, "cpu", torch.float64), strict=True):
        assert relative(got, wanted) <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operator_is_registered_right(dtype: torch.dtype) -> None:
    x, weight = (torch.randn(*shape, device=DEVICE).requires_grad_() for shape in ((2, 3, 5), (5,)))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(
        torch.ops.varla.normalize.default, (x.to(dtype), weight, EPS, dtype), test_utils=checks
    )
    assert set(found.values()) == {"SUCCESS"}
    turned = torch.randn(2, 5, 3, device=DEVICE, dtype=dtype).mT.requires_grad_()
    assert_fakes_agree(
        lambda: normalize(turned, weight, EPS, dtype), [turned, weight], "normalize", "normalize_backward"
    )


@pytest.mark.skipif(not triton_interpreted(), reason="on a GPU, compute-sanitizer does this")
@pytest.mark.parametrize(("rows", "N"), [(1, 1), (5, 100), (300, 33), (2, 3000)])
def test_nothing_outside_its_tensors(rows: int, N: int) -> None:
    from tests.ops.triton.bounds import watched

    with watched() as names:
        outcome(normalize, (rows, N), DEVICE, (torch.float32, torch.float32, torch.bfloat16))
    assert names == {"norm_forward", "norm_backward"}


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    @pytest.mark.parametrize("shape", [(32, 2048, 512), (7, 8192), (3, 2048), (1001, 640)])
    def test_large(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        errors = compared(shape, (torch.float32, torch.float32, dtype))
        bound = 2e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
        assert not {name: error for name, error in errors.items() if not error <= bound}

    @pytest.mark.parametrize("few", [0, MIN_KERNEL_ELEMENTS])
    def test_under_autocast(self, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(worth_a_kernel.__globals__, "MIN_KERNEL_ELEMENTS", few)
        x, weight = torch.randn(4, 50, 64, device="cuda"), torch.randn(64, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            found = rms_norm(x, weight, EPS)
            assert rms_norm(x, weight, EPS, wide=True).dtype == torch.float32
        assert found.dtype == torch.bfloat16
        assert rms_norm(x, weight, EPS).dtype == torch.float32
        assert relative(found, plain(x, weight, EPS, torch.float32)) <= 4e-3

    def test_float64_is_pytorchs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(worth_a_kernel.__globals__, "MIN_KERNEL_ELEMENTS", 0)
        x, weight = torch.randn(4, 64, device="cuda").double(), torch.randn(64, device="cuda")
        for given in ((x, weight), (x.float(), weight.double())):
            with torch.autocast("cuda", torch.bfloat16):  # which leaves float64 alone
                assert rms_norm(*given, EPS).dtype == torch.float64
            found = rms_norm(*given, EPS)
            assert found.dtype == torch.float64
            assert relative(found, plain(*given, EPS, torch.float64)) <= 1e-12

    def test_the_same_twice(self) -> None:
        first, second = (outcome(normalize, (999, 512), "cuda", FLOAT) for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)

    def test_rows_that_do_not_fit_are_pytorchs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(norm, "norm_forward")
        monkeypatch.setitem(worth_a_kernel.__globals__, "MIN_KERNEL_ELEMENTS", 0)
        x = torch.randn(2, WIDEST + 1, device="cuda")
        weight = torch.ones(WIDEST + 1, device="cuda")
        assert relative(rms_norm(x, weight, EPS), plain(x.cpu(), weight.cpu(), EPS, torch.float32)) <= 1e-6
