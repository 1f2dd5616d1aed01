"""`varla.directions` by kernels against the plain loop in float64: on a GPU or interpreted."""

from functools import partial
from typing import Any

import pytest
import torch

import varla
from tests.ops.cases import flat, vla_inputs, vla_state, with_gradients
from tests.ops.test_precision import hard_inputs
from tests.ops.triton.cases import DEVICE, assert_fakes_agree, relative, round_to_nearest
from varla.ops.directions.settings import DirectionSettings

pytest.importorskip("triton")

from varla.ops.directions.triton.op import directions_triton

NO_REFRESH: dict[str, Any] = {"refresh_every": None}
each_refresh = pytest.mark.parametrize("options", [{}, NO_REFRESH], ids=["refresh", "no refresh"])


def make(T: int, batch: int = 2, rows: int = 2, H: int = 1, D: int = 16) -> tuple[list[torch.Tensor], Any]:
    state = vla_state(rows, H, D, 1)
    return vla_inputs(T, B=batch, H=H, D=D)[1::2], varla.DirectionState(state.A, state.t)


def outcome(
    inputs: list[torch.Tensor], state: Any, dtype: torch.dtype, device: str, **options: Any
) -> dict[str, torch.Tensor]:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if state is not None:
        state = varla.DirectionState(state.A.to(device, wide), state.t.to(device))
    return with_gradients(varla.directions, [x.to(device, dtype) for x in inputs], state, **options)


def assert_agrees(
    inputs: list[torch.Tensor], state: Any, tolerance: float = 1e-5, dtype: torch.dtype = torch.float32, **options: Any
) -> None:
    """Directions, final state and all gradients of the kernels within `tolerance` (by norm) of the loop in float64."""
    rounded = [x.to(dtype).double() for x in inputs]
    start = None if state is None else varla.DirectionState(state.A.float().double(), state.t)
    wanted = outcome(rounded, start, torch.float64, "cpu", backend="reference", **options)
    got = outcome(rounded, start, dtype, DEVICE, backend="triton", **options)
    assert got.keys() == wanted.keys()
    assert {got[name].dtype for name in ("o", "d 0", "d 1")} == {dtype}
    assert got["A"].dtype == torch.float32
    assert torch.equal(got["t"].cpu(), wanted["t"])
    # Where nothing but zeros is wanted, rounding is all that can be left.
    errors = {name: relative(got[name], x) if x.any() else float(got[name].norm()) for name, x in wanted.items()}
    assert not {name: error for name, error in errors.items() if not error <= tolerance}


@each_refresh
@pytest.mark.parametrize("T", [1, 15, 16, 17, 63, 64, 65, 150])
def test_every_length(T: int, options: dict[str, Any]) -> None:
    assert_agrees(*make(T), **options)


@each_refresh
@pytest.mark.parametrize("D", [4, 16])
def test_the_promised_error_at_the_least_penalty(D: int, options: dict[str, Any]) -> None:
    """What `DirectionSettings.check_precision` says of every form, for random and for repeated keys."""
    least: dict[str, Any] = {"lambda0": 9.8e-4, "penalty_scale": 1.0, "gain": "raw", "feature_map": "identity"}
    k = hard_inputs(64, D, H=1)[1][:2]
    a, state = varla.directions(k.to(DEVICE), k.to(DEVICE), backend="triton", return_state=True, **least, **options)
    double = k.double()
    wanted, exact = varla.directions(double, double, backend="reference", return_state=True, **least, **options)
    assert (a.cpu() - wanted).norm(dim=-1).max() <= 20 * torch.finfo(torch.float32).eps / least["lambda0"]
    for row in range(2):
        assert relative(state.A[row], exact.A[row]) <= 1e-3


@each_refresh
def test_several_spans(options: dict[str, Any]) -> None:
    assert_agrees(*make(530, batch=1, rows=1), **options)


def test_a_long_sequence_alone_with_refresh() -> None:
    """So long that its spans are walked at once, from what each of them does to any A."""
    assert_agrees(*make(1030, batch=1, rows=1), refresh=0.05)


@each_refresh
@pytest.mark.parametrize("D", [2, 5, 24, 40])
def test_every_width(D: int, options: dict[str, Any]) -> None:
    assert_agrees(*make(70, batch=1, rows=1, H=2, D=D), **options)


@pytest.mark.parametrize("own", [{}, NO_REFRESH, {"update_penalty": False}], ids=["refresh", "no refresh", "fixed"])
@pytest.mark.parametrize("normalize_key", [True, False])
@pytest.mark.parametrize("gain", ["unit", "projection", "raw"])
def test_every_gain(gain: str, normalize_key: bool, own: dict[str, Any]) -> None:
    assert_agrees(*make(50), gain=gain, normalize_key=normalize_key, **own)


@pytest.mark.parametrize(
    "options",
    [
        {"refresh_every": 1},
        {"refresh_every": 7, "refresh": 0.1},
        {"refresh_every": 2**40},
        {"refresh": 0.0},
        {"penalty_scale": 1.0},
        {"feature_map": "identity"},
        {"feature_map": "identity", "gain": "raw", "normalize_key": False},
    ],
    ids=str,
)
def test_every_setting(options: dict[str, Any]) -> None:
    assert_agrees(*make(50), **options)


@pytest.mark.parametrize("lambda0", [0.1, 3.0])
def test_from_a_fresh_state(lambda0: float) -> None:
    inputs, _ = make(50)
    assert_agrees(inputs, None, lambda0=lambda0)


@pytest.mark.parametrize("gain", ["unit", "projection"])
@each_refresh
def test_packed(options: dict[str, Any], gain: str) -> None:
    lengths = [3, 0, 70, 1, 300, 64, 0]
    inputs, state = make(sum(lengths), batch=1, rows=len(lengths))
    assert_agrees(inputs, state, cu_seqlens=torch.tensor([0, *lengths]).cumsum(0), gain=gain, **options)


@pytest.mark.parametrize("gain", ["unit", "projection", "raw"])
def test_zero_directions_and_keys(gain: str) -> None:
    (k, u), state = make(40)
    k[:, 3:5], u[:, 4:7] = 0, 0
    assert_agrees([k, u], state, gain=gain, feature_map="identity")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("D", [8, 16])
def test_low_precision_inputs(D: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    round_to_nearest(monkeypatch)
    assert_agrees(*make(70, D=D), tolerance=1e-2, dtype=dtype)


def test_no_tokens() -> None:
    inputs, state = make(0)
    got = outcome(inputs, state, torch.float32, DEVICE, backend="triton")
    assert got["o"].shape == (2, 0, 1, 16)
    assert torch.equal(got["A"].cpu(), state.A.float())


def test_memory_along_them_is_vla() -> None:
    """Two operators and the fused one, in float32."""
    q, k, v, u = (x.float().to(DEVICE) for x in vla_inputs(70, H=1, D=16, Dv=24))
    o = varla.memory(q, k, v, varla.directions(k, u, backend="triton"), backend="triton")
    assert relative(o, varla.vla(q, k, v, u, backend="triton")) < 5e-6


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_as_an_operator(packed: bool, forgets: bool) -> None:
    """Schema, fake tensors (torch.compile) and autograd agree with what the operator does."""
    inputs, state = make(70, batch=1 if packed else 2, H=2)
    leaves = [x.float().to(DEVICE).requires_grad_() for x in (*inputs, state.A)]
    cu_seqlens = torch.tensor([0, 3, 70], device=DEVICE) if packed else None
    settings = DirectionSettings(penalty_scale=0.25, beat=64, refresh_every=None if forgets else 20)
    k, u, A = leaves
    forget, f = torch.full_like(k[..., :1], -0.1), torch.zeros_like(A[..., 0, 0])
    more = [forget.requires_grad_(), f.requires_grad_()] if forgets else [None, None]
    arguments = flat((k, u, None, more[0], A, more[1], state.t.to(DEVICE), cu_seqlens, settings, True))
    leaves += [x for x in more if x is not None]
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(directions_triton.registered, arguments, test_utils=checks)
    assert set(found.values()) == {"SUCCESS"}
    call = partial(directions_triton.registered, *arguments)
    assert_fakes_agree(call, leaves, "directions_triton", "directions_triton_backward")


def test_double_backward_is_refused() -> None:
    leaves = [x.float().to(DEVICE).requires_grad_() for x in make(20)[0]]
    (grad,) = torch.autograd.grad(varla.directions(*leaves, backend="triton").sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported by backend='triton'"):
        grad.sum().backward()


@pytest.mark.parametrize(
    ("D", "dtype", "message"),
    [(130, torch.float32, "the kernels take D from 1 to 128, got 130"), (16, torch.float64, "compute in float32")],
)
def test_what_the_kernels_cannot_take(D: int, dtype: torch.dtype, message: str) -> None:
    inputs = [x.to(DEVICE, dtype) for x in make(5, D=D)[0]]
    with pytest.raises(RuntimeError, match=message):
        varla.directions(*inputs, backend="triton")
