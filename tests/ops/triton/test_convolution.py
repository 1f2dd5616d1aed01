"""The kernel of the short convolution against PyTorch's in float64, and that against the sum it is."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.cases import randn
from tests.ops.triton.cases import DEVICE, assert_fakes_agree, compiled, gpu, relative
from varla.ops.convolution import last_inputs, plain, short_convolution

pytest.importorskip("triton")

from varla.ops.triton.convolution import CHANNELS, TOKENS, convolve

NAMES = ("x", "weight", "bias", "before")


@pytest.fixture(autouse=True)
def few_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter a program takes its time for every tile, also for those without tokens."""
    if DEVICE == "cpu":
        monkeypatch.setattr("varla.ops.triton.convolution.TILES", 2)


def make(B: int, T: int, C: int, W: int, bias: bool = True, rows: int | None = None) -> dict[str, Any]:
    shapes = {"x": (B, T, C), "weight": (C, W), "bias": (C,), "before": (rows or B, W - 1, C)}
    found = {name: randn(*shape, seed=i).float().double() for i, (name, shape) in enumerate(shapes.items())}
    return found if bias else {**found, "bias": None}


def outcome(
    form: Any, given: dict[str, Any], cu_seqlens: Tensor | None, device: str, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Outputs and the gradients of all that is there."""
    leaves = {name: None if x is None else x.to(device, dtype).requires_grad_() for name, x in given.items()}
    y = form(*(leaves[name] for name in NAMES), None if cu_seqlens is None else cu_seqlens.to(device))
    there = [name for name in NAMES if leaves[name] is not None]
    dy = randn(*y.shape, seed=9).to(device, dtype)
    found = torch.autograd.grad(y, [leaves[name] for name in there], dy)
    return {"y": y.detach(), **{f"d {name}": g for name, g in zip(there, found, strict=True)}}


def assert_agrees(given: dict[str, Any], cu_seqlens: Tensor | None = None, tolerance: float = 1e-6) -> None:
    got = outcome(convolve, given, cu_seqlens, DEVICE, torch.float32)
    wanted = outcome(plain, given, cu_seqlens, "cpu", torch.float64)
    errors = {name: relative(got[name], wanted[name]) for name in wanted if wanted[name].abs().sum() > 0}
    assert not {name: error for name, error in errors.items() if not error <= tolerance}
    assert all(got[name].shape == wanted[name].shape for name in wanted)


def test_the_plain_form_is_the_sum() -> None:
    given = make(2, 7, 3, 4)
    x, weight, bias, before = (given[name] for name in NAMES)
    extended, found = torch.cat((before, x), 1), plain(x, weight, bias, before, None)
    for t in range(7):
        total = sum(weight[:, j] * extended[:, t + j] for j in range(4)) + bias
        assert torch.allclose(found[:, t], total * torch.sigmoid(total), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("W", [1, 2, 4, 5])
@pytest.mark.parametrize("T", [1, 2, TOKENS, 5 * TOKENS + 3])
def test_every_length_and_width(T: int, W: int) -> None:
    assert_agrees(make(2, T, 5, W))


@pytest.mark.parametrize("C", [1, CHANNELS, CHANNELS + 9])
def test_every_number_of_channels(C: int) -> None:
    assert_agrees(make(3, 5, C, 4, bias=C != 1))


@pytest.mark.parametrize("tile", [(16, 16, 1), (128, 64, 4)])
def test_tiles_are_read_at_the_call(tile: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in zip(("TOKENS", "CHANNELS", "WARPS"), tile, strict=True):
        monkeypatch.setattr(f"varla.ops.triton.convolution.{name}", value)
    assert_agrees(make(2, 37, 40, 4))


@pytest.mark.parametrize("slopes", [((4, 16, 1), 3), ((16, 16, 1), 2), ((8, 64, 2), 1)])
@pytest.mark.parametrize("packed", [False, True])
def test_slopes_of_several_programs(
    slopes: tuple[tuple[int, int, int], int], packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in zip(("SLOPES", "TILES"), slopes, strict=True):
        monkeypatch.setattr(f"varla.ops.triton.convolution.{name}", value)
    if packed:
        assert_agrees(make(1, 75, 40, 4, rows=4), torch.tensor([0, 13, 13, 40, 75]))
    else:
        assert_agrees(make(2, 37, 40, 4))


@pytest.mark.parametrize("lengths", [[20, 0, 1, 2, 41, 0], [3], [0, 0, 1], [1, 1, 2, 3, 1], [TOKENS - 1, 1, 2, TOKENS]])
def test_packed(lengths: list[int]) -> None:
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    assert_agrees(make(1, sum(lengths), 6, 4, rows=len(lengths)), cu_seqlens)


def test_packed_is_one_after_the_other() -> None:
    lengths = [4, 0, 1, 9]
    given = make(1, sum(lengths), 3, 4, rows=len(lengths))
    x, before = given["x"], given["before"]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    packed, after = plain(x, given["weight"], given["bias"], before, cu_seqlens), last_inputs(x, before, cu_seqlens)
    for i, (begin, end) in enumerate(zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)):
        own, first = x[:, begin:end], before[i : i + 1]
        assert torch.equal(after[i : i + 1], last_inputs(own, first))
        if end > begin:
            alone = plain(own, given["weight"], given["bias"], first, None)
            assert torch.allclose(packed[:, begin:end], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", [None, [1, 2, 6], [5, 0, 1, 3], [0, 2, 2, 5]])
def test_a_gradient_stays_in_its_sequence(lengths: list[int] | None) -> None:
    """One sequence's is not a number: every number beside it is what it is without."""
    rows = 3 if lengths is None else len(lengths)
    given = make(1 if lengths else rows, sum(lengths) if lengths else 3, 5, 4, rows=rows)
    bounds = torch.tensor([0, *(lengths or [3, 3, 3])]).cumsum(0)
    x, weight, bias, before = (y.float().to(DEVICE).requires_grad_() for y in given.values())
    y = convolve(x, weight, bias, before, bounds.to(DEVICE) if lengths else None)
    dy = randn(*y.shape, seed=9).to(DEVICE, y.dtype)
    clean = torch.autograd.grad(y, (x, before), dy, retain_graph=True)
    for i, (begin, end) in enumerate(zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)):
        broken = dy.clone().flatten(0, 1)
        broken[begin:end] = float("nan")
        dx, dbefore = torch.autograd.grad(y, (x, before), broken.view_as(dy), retain_graph=True)
        own, other = torch.zeros(9, dtype=torch.bool), torch.arange(rows) != i
        own[begin:end] = True
        assert dx.flatten(0, 1)[own].isnan().all()
        assert torch.equal(dx.flatten(0, 1)[~own], clean[0].flatten(0, 1)[~own])
        assert torch.equal(dbefore[other], clean[1][other])
        assert bool(dbefore[i].isnan().any()) == (end > begin)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_filters_get_gradients_of_slopes_that_were_not_rounded(dtype: torch.dtype) -> None:
    given = make(2, TOKENS + 9, 5, 4)
    given["x"] = given["x"].to(dtype).double()
    dy = randn(*given["x"].shape, seed=9).to(dtype)

    def gradients(form: Any, device: str, x_type: torch.dtype, others: torch.dtype) -> dict[str, Tensor]:
        leaves = [x.to(device, x_type if name == "x" else others).requires_grad_() for name, x in given.items()]
        y = form(*leaves, None)
        return dict(zip(NAMES, torch.autograd.grad(y, leaves, dy.to(device, y.dtype)), strict=True))

    got = gradients(convolve, DEVICE, dtype, torch.float32)
    wanted = gradients(plain, "cpu", torch.float64, torch.float64)
    for name in NAMES:
        bound = 1e-6 if name in ("weight", "bias") else 2 * torch.finfo(dtype).eps
        assert relative(got[name], wanted[name]) <= bound, name


@pytest.mark.parametrize("T", [0, 1, 2, 3, 9])
def test_last_inputs_are_a_copy_of_the_last(T: int) -> None:
    x, before = randn(2, T, 3, seed=1), randn(2, 3, 3, seed=2)
    found = last_inputs(x, before)
    assert torch.equal(found, torch.cat((before, x), 1)[:, T:])
    assert found.untyped_storage().nbytes() == found.nbytes


def test_nothing_to_convolve() -> None:
    given = make(2, 0, 5, 4)
    found = outcome(convolve, given, None, DEVICE, torch.float32)
    assert found["y"].shape == (2, 0, 5)
    assert not any(found[f"d {name}"].any() for name in NAMES)
    turned = [x.float().to(DEVICE).mT.contiguous().mT if x.dim() > 1 else x.float().to(DEVICE) for x in given.values()]
    leaves = [x.requires_grad_() for x in turned]
    assert_fakes_agree(lambda: convolve(*leaves, None), leaves, "convolve", "convolve_backward")


def test_a_state_that_wants_no_gradient_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("varla.ops.triton.convolution.convolve_before_backward")
    x, weight, bias, before = (y.float().to(DEVICE).requires_grad_() for y in make(2, 9, 5, 4).values())
    convolve(x, weight, bias, before.detach(), None).sum().backward()
    assert x.grad is not None
    assert x.grad.any()


def test_offsets_that_are_wrong_are_refused() -> None:
    x, weight, bias, before = (y.float().to(DEVICE) for y in make(1, 9, 5, 4, rows=2).values())
    with pytest.raises(ValueError, match="cu_seqlens must end with the number of packed tokens T = 9, got 8"):
        convolve(x, weight, bias, before, torch.tensor([0, 3, 8]))


def test_inputs_in_any_memory_order() -> None:
    given = make(2, 9, 5, 4)
    turned = {name: None if x is None else x.mT.contiguous().mT if x.dim() > 1 else x for name, x in given.items()}
    first, second = (outcome(convolve, each, None, DEVICE, torch.float32) for each in (given, turned))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_second_derivatives_are_the_plain_forms() -> None:
    def twice(form: Any, device: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [x.to(device, dtype).requires_grad_() for x in make(1, 6, 3, 3).values() if x is not None]
        first = torch.autograd.grad(form(*leaves, None).square().sum(), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    for got, wanted in zip(twice(convolve, DEVICE, torch.float32), twice(plain, "cpu", torch.float64), strict=True):
        assert relative(got, wanted) <= 1e-5


def test_gradients_that_are_to_be_derived_are_the_same_for_inputs_of_two_types() -> None:
    x, *others = (y.float().to(DEVICE) for y in make(2, 9, 5, 4).values())
    leaves = [y.requires_grad_() for y in (x.bfloat16(), *others)]
    y = convolve(*leaves, None)
    once = torch.autograd.grad(y.float().sum(), leaves, retain_graph=True)
    again = torch.autograd.grad(y.float().sum(), leaves, create_graph=True)
    for first, second in zip(once, again, strict=True):
        assert first.dtype == second.dtype
        assert relative(first, second) <= 1e-2


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_the_operator_is_registered_right(packed: bool, bias: bool) -> None:
    given = make(1, 6, 3, 4, bias=bias)
    leaves = [None if x is None else x.float().to(DEVICE).requires_grad_() for x in given.values()]
    cu_seqlens = torch.tensor([0, 6], device=DEVICE) if packed else None
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(torch.ops.varla.convolve.default, (*leaves, cu_seqlens), test_utils=checks)
    assert set(found.values()) == {"SUCCESS"}
    there = [x for x in leaves if x is not None]
    assert_fakes_agree(lambda: convolve(*leaves, cu_seqlens), there, "convolve", "convolve_backward")


@pytest.mark.parametrize("arch", [80, 90])
def test_compiles_without_spills(arch: int) -> None:
    found = {kernel["kernel"]: kernel for kernel in compiled("compiling_convolution", arch)}
    assert set(found) == {"convolve_forward", "convolve_slopes", "convolve_turned", "convolve_before_backward"}
    assert not [kernel for kernel in found.values() if kernel["stack"] or kernel["faults"]]


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    @pytest.mark.parametrize(("B", "T", "C"), [(2, 3000, 512), (1, 1, 640), (64, 97, 128)])
    def test_large(self, B: int, T: int, C: int, dtype: torch.dtype) -> None:
        given = {name: None if x is None else x.to(dtype).double() for name, x in make(B, T, C, 4).items()}
        got = outcome(convolve, given, None, "cuda", dtype)
        wanted = outcome(plain, given, None, "cpu", torch.float64)
        bound = 1e-5 if dtype == torch.float32 else 2 * torch.finfo(dtype).eps
        errors = {name: relative(got[name], wanted[name]) for name in wanted}
        assert not {name: error for name, error in errors.items() if not error <= bound}

    def test_under_autocast(self) -> None:
        x, weight, bias, before = (x.float().cuda() for x in make(2, 50, 64, 4).values() if x is not None)
        with torch.autocast("cuda", torch.bfloat16):
            found = short_convolution(x, weight, bias, before)
        assert found.dtype == torch.bfloat16
        assert relative(found, plain(x.bfloat16().float(), weight, bias, before, None)) <= 5e-3

    def test_the_same_twice(self) -> None:
        given = make(4, 700, 256, 4)
        first, second = (outcome(convolve, given, None, "cuda", torch.float32) for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)
