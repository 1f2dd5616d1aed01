"""The kernels of queries and keys against the plain form in float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.cases import randn
from tests.ops.triton.cases import DEVICE, assert_fakes_agree, compiled, gpu, relative, round_to_nearest
from varla.ops import features

pytest.importorskip("triton")

from varla.ops.triton import features as feature_kernels
from varla.ops.triton.features import ELEMENTS, features_triton, scaled_features

Given = tuple[Tensor, Tensor | None]


def make(T: int, D: int, H: int = 2, beta: bool = True, B: int = 2) -> Given:
    """x [B, T, H, D] and beta [B, T, H, 1] or None, numbers that float32 has."""
    x, strength = randn(B, T, H, D, seed=1), randn(B, T, H, 1, seed=2).sigmoid()
    return x.float().double(), strength.float().double() if beta else None


def outcome(
    form: Any, given: Given, device: str, dtype: torch.dtype, kind: str, normalize: bool, scale: float, to: torch.dtype
) -> dict[str, Tensor]:
    """Outputs and the gradients of all that is there."""
    x, beta = (None if y is None else y.to(device, dtype).requires_grad_() for y in given)
    found = form(x, beta, kind, normalize, scale, to)
    slopes = [randn(*y.shape, seed=8 + i).to(device, to) for i, y in enumerate(found)]
    there = [y for y in (x, beta) if y is not None]
    gradients = torch.autograd.grad(found, there, slopes)
    assert [y.dtype for y in (*found, *gradients)] == [*[to] * len(found), *[dtype] * len(there)]
    return dict(
        zip(
            ("y", "a", "dx", "dbeta") if beta is not None else ("y", "dx"),
            (*(y.detach() for y in found), *gradients),
            strict=True,
        )
    )


def assert_agrees(
    given: Given, kind: str = "identity", normalize: bool = True, scale: float = 0.3, tolerance: float = 1e-6
) -> dict[str, Tensor]:
    got = outcome(features_triton, given, DEVICE, torch.float32, kind, normalize, scale, torch.float32)
    wanted = outcome(features.scaled_features, given, "cpu", torch.float64, kind, normalize, scale, torch.float64)
    if given[0].shape[-1] == 1 and normalize:  # nothing but rounding: one number has no direction to change
        assert got.pop("dx").abs().max() <= tolerance * (1 / given[0]).abs().max()
        wanted.pop("dx")
    errors = {name: relative(got[name], wanted[name]) for name in wanted}
    assert not {name: error for name, error in errors.items() if not error <= tolerance}
    assert all(got[name].shape == wanted[name].shape and got[name].is_contiguous() for name in wanted)
    return got


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", features.FEATURE_MAPS)
@pytest.mark.parametrize("D", [1, 5, 24, 64, 128])
def test_every_setting_and_width(D: int, kind: str, normalize: bool, beta: bool) -> None:
    assert_agrees(make(7, D, beta=beta), kind, normalize)


@pytest.mark.parametrize("H", [1, 3])
@pytest.mark.parametrize("T", [1, ELEMENTS // 64 - 1, ELEMENTS // 64, 2 * ELEMENTS // 64 + 1])
def test_every_number_of_rows(T: int, H: int) -> None:
    assert_agrees(make(T, 40, H, B=1), "elu1")


@pytest.mark.parametrize("kind", features.FEATURE_MAPS)
def test_the_adjoints_are_those_written_by_hand(kind: str) -> None:
    """Of one vector, by the functions that other backwards are made of."""
    x, dy = (randn(2, 3, 2, 5, seed=seed).float().to(DEVICE) for seed in (1, 2))
    phi = features.feature(x, kind)
    wanted = features.feature_backward(features.unit_backward(dy, *features.unit(phi)), x, phi, kind)
    leaf = x.clone().requires_grad_()
    (got,) = torch.autograd.grad(features_triton(leaf, None, kind, True, 1.0, torch.float32), leaf, [dy])
    assert relative(got, wanted) <= 1e-6


@pytest.mark.parametrize("kind", features.FEATURE_MAPS)
@pytest.mark.parametrize("size", [1e30, 1e-30])
def test_lengths_whose_squares_float32_has_not(size: float, kind: str) -> None:
    x, beta = make(9, 24)
    found = assert_agrees(((x * size).float().double(), beta), kind)
    if kind == "identity":
        lengths = found["y"].norm(dim=-1)
        assert torch.allclose(lengths, torch.full_like(lengths, 0.3))


@pytest.mark.parametrize(("kind", "value"), [("identity", 0.0), ("identity", 1e-40), ("elu1", -200.0)])
def test_a_vector_without_direction_stays_zero(kind: str, value: float) -> None:
    """Zero, nothing but denormal numbers, or features that vanish."""
    x, beta = make(9, 24)
    x[:, 3] = value
    found = outcome(features_triton, (x, beta), DEVICE, torch.float32, kind, True, 0.3, torch.float32)
    for name, each in found.items():
        assert not each[:, 3].any(), name
        assert each[:, 4].all(), name
    if value == 0:
        assert_agrees((x, beta), kind)


@pytest.mark.parametrize("kind", features.FEATURE_MAPS)
@pytest.mark.parametrize("normalize", [False, True])
def test_nan_stays_where_it_is(normalize: bool, kind: str) -> None:
    x, beta = make(9, 24)
    x[:, 3, :, 7] = float("nan")
    settings = (kind, normalize, 0.3, torch.float32)
    got = outcome(features_triton, (x, beta), DEVICE, torch.float32, *settings)
    wanted = outcome(features.scaled_features, (x, beta), "cpu", torch.float32, *settings)
    for name in wanted:
        assert torch.equal(got[name].isnan().cpu(), wanted[name].isnan()), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", features.FEATURE_MAPS)
def test_rounded_once(kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the plain form finds in float32, but for a number now and then that lies between two others."""
    round_to_nearest(monkeypatch)
    x, beta = make(90, 24)
    assert beta is not None
    given = x.to(dtype), beta.to(dtype)
    for to in (dtype, torch.float32):
        got = outcome(features_triton, given, DEVICE, dtype, kind, True, 0.3, to)
        wanted = outcome(features.scaled_features, given, "cpu", dtype, kind, True, 0.3, to)
        for name in wanted:
            apart = got[name].cpu() != wanted[name]
            assert wanted[name].dtype == torch.float32 or apart.double().mean() <= 0.01, name
            assert relative(got[name], wanted[name]) <= (1e-6 if wanted[name].dtype == torch.float32 else 1e-3), name


def test_nothing_to_do_costs_nothing() -> None:
    x, beta = (None if y is None else y.float().to(DEVICE) for y in make(3, 4))
    settings: dict[str, Any] = {
        "beta": None, "feature_map": "identity", "normalize": False, "scale": 1.0, "dtype": torch.float32
    }  # fmt: skip
    (found,) = scaled_features(x, **settings)
    assert found is x
    changes = {"beta": beta, "feature_map": "elu1", "normalize": True, "scale": 0.5, "dtype": torch.bfloat16}
    for name, value in changes.items():
        assert scaled_features(x, **{**settings, name: value})[0] is not x, name


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize(("B", "T"), [(2, 0), (0, 3)])
def test_nothing_to_take(B: int, T: int, beta: bool) -> None:
    found = outcome(
        features_triton, make(T, 5, beta=beta, B=B), DEVICE, torch.float32, "elu1", True, 0.3, torch.bfloat16
    )
    assert found["y"].shape == found["dx"].shape == (B, T, 2, 5)


def test_inputs_in_any_memory_order() -> None:
    settings: tuple[Any, ...] = (DEVICE, torch.float32, "elu1", True, 0.3, torch.float32)
    x, beta = make(9, 5)
    assert beta is not None
    wanted = outcome(features_triton, (x, beta), *settings)
    wide = torch.stack((beta, -beta), -1).flatten(-2)[..., ::2]
    for other in (x.mT.contiguous().mT, x.transpose(1, 2).contiguous().transpose(1, 2)):
        assert not other.is_contiguous()
        found = outcome(features_triton, (other, wide), *settings)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_gradients_in_any_memory_order() -> None:
    x, beta = (y.float().to(DEVICE).requires_grad_() for y in make(9, 5) if y is not None)
    y = features_triton(x, beta, "elu1", True, 0.3, torch.float32)
    slopes = [randn(*each.shape, seed=i).float().to(DEVICE) for i, each in enumerate(y)]
    turned = [each.mT.contiguous().mT for each in slopes]
    first, second = (torch.autograd.grad(y, [x, beta], each, retain_graph=True) for each in (slopes, turned))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("used", [0, 1])
def test_one_of_two_outputs_used(used: int) -> None:
    def gradients(form: Any, device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        leaves = [y.to(device, dtype).requires_grad_() for y in make(3, 5) if y is not None]
        y = form(*leaves, "elu1", True, 0.3, dtype)[used]
        return torch.autograd.grad(y.square().sum() + y.sum(), leaves, materialize_grads=True)

    got, wanted = (
        gradients(features_triton, DEVICE, torch.float32),
        gradients(features.scaled_features, "cpu", torch.float64),
    )
    assert all(relative(a, b) <= 1e-6 for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("beta", [False, True])
def test_every_element_is_written(beta: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits where memory that is asked for holds NaN."""
    given = make(ELEMENTS // 8 + 3, 5, beta=beta)
    settings: tuple[Any, ...] = (DEVICE, torch.float32, "elu1", True, 0.3, torch.float32)
    clean = outcome(features_triton, given, *settings)

    def poisoned(like: Tensor, **options: Any) -> Tensor:
        return torch.full_like(like, float("nan"), **options)

    with monkeypatch.context() as patch:
        patch.setattr(feature_kernels.torch, "empty_like", poisoned)
        found = outcome(features_triton, given, *settings)
    assert all(torch.equal(found[name], clean[name]) for name in clean)


@pytest.mark.parametrize("beta", [False, True])
@pytest.mark.parametrize("kind", features.FEATURE_MAPS)
def test_second_derivatives_are_the_plain_forms(kind: str, beta: bool) -> None:
    def twice(form: Any, device: str, dtype: torch.dtype) -> list[Tensor]:
        leaves = [y.to(device, dtype).requires_grad_() for y in make(6, 3, beta=beta) if y is not None]
        found = form(leaves[0], leaves[1] if beta else None, kind, True, 0.3, dtype)
        first = torch.autograd.grad(sum((y + 1).pow(3).sum() for y in found), leaves, create_graph=True)
        return list(torch.autograd.grad(sum(g.square().sum() for g in first), leaves))

    got, wanted = twice(features_triton, DEVICE, torch.float32), twice(features.scaled_features, "cpu", torch.float64)
    assert all(relative(a, b) <= 1e-5 for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("beta", [False, True])
def test_the_operator_is_registered_right(beta: bool, dtype: torch.dtype) -> None:
    x, strength = (None if y is None else y.float().to(DEVICE).requires_grad_() for y in make(6, 3, beta=beta))
    assert x is not None
    arguments = (x, strength, "elu1", True, 0.3, dtype)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(torch.ops.varla.features_triton.default, arguments, test_utils=checks)
    assert set(found.values()) == {"SUCCESS"}
    leaves = [y for y in (x, strength) if y is not None]
    names = ("features_triton", "features_triton_backward")
    assert_fakes_agree(lambda: features_triton(*arguments), leaves, *names)
    turned = x.detach().mT.contiguous().mT.requires_grad_()
    assert_fakes_agree(lambda: features_triton(turned, *arguments[1:]), [turned], *names)


@pytest.mark.parametrize(
    ("arch", "dtype", "D"), [(80, "bfloat16", 64), (80, "float32", 5), (90, "bfloat16", 64), (90, "float32", 128)]
)
def test_compiles_without_spills(arch: int, dtype: str, D: int) -> None:
    found = compiled("compiling_features", arch, dtype, D)
    assert [kernel["kernel"] for kernel in found] == ["features_forward", "features_backward"] * 3
    assert not [kernel for kernel in found if kernel["stack"] or kernel["faults"]]
    assert max(kernel["reg"] for kernel in found) <= 96, found  # five programs to a multiprocessor


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
    @pytest.mark.parametrize(
        ("B", "T", "H", "D"), [(2, 3000, 8, 64), (64, 97, 4, 32), (1, 1001, 3, 128), (1, 50, 2, 5)]
    )
    @pytest.mark.parametrize("kind", features.FEATURE_MAPS)
    def test_large(self, kind: str, B: int, T: int, H: int, D: int, dtype: torch.dtype) -> None:
        for beta in (False, True):
            for normalize in (False, True):
                x, strength = (None if y is None else y.to(dtype).double() for y in make(T, D, H, beta, B))
                assert x is not None
                got = outcome(features_triton, (x, strength), "cuda", dtype, kind, normalize, 0.3, dtype)
                settings = (kind, normalize, 0.3, torch.float64)
                wanted = outcome(features.scaled_features, (x, strength), "cpu", torch.float64, *settings)
                bound = 1e-6 if dtype == torch.float32 else torch.finfo(dtype).eps
                errors = {name: relative(got[name], wanted[name]) for name in wanted}
                assert not {name: error for name, error in errors.items() if not error <= bound}

    @pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_properties(0).total_memory < 2**35, reason="takes 17 GiB"
    )
    def test_more_numbers_than_int32_counts(self) -> None:
        """Only the last rows, and only that they are as those before."""
        x = torch.randn(64, device="cuda", dtype=torch.bfloat16).expand(1, 2**25 + 3, 1, 64).contiguous()
        (y,) = features_triton(x.requires_grad_(), None, "elu1", True, 1.0, torch.bfloat16)
        (dx,) = torch.autograd.grad(y, x, x.detach())
        for each in (y, dx):
            assert torch.equal(each[:, -5:], each[:, :1].expand(-1, 5, -1, -1))

    def test_the_same_twice(self) -> None:
        settings: tuple[Any, ...] = ("cuda", torch.float32, "elu1", True, 0.3, torch.float32)
        first, second = (outcome(features_triton, make(700, 64, 8), *settings) for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)
