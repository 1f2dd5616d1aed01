"""`varla.memory` by kernels against the loop in float64, in chunks and token by token; on a GPU or interpreted."""

from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

import varla
from tests.ops.cases import of_type, randn, vla_state, with_gradients
from tests.ops.triton.cases import DEVICE, relative, round_to_nearest
from tests.ops.triton.mechanisms import go_token_by_token

pytest.importorskip("triton")

NO_NORMALIZER: dict[str, Any] = {"normalizer": False}
OPTIONS: list[dict[str, Any]] = [
    {},
    NO_NORMALIZER,
    {"error": False},
    {"error": False, "normalizer": False},
    {"normalize_query": True, "scale": None},
    {"normalize_query": True, "scale": 0.3, "normalizer": False},
    {"scale": 3.0},
    {"normalize_key": False, "error": False},
    {"normalize_key": False, "feature_map": "identity", "normalizer": False},
    {"feature_map": "identity", "normalizer": False},
    {"eps": 30.0},
]
CHUNKS, TOKENS = 0, 10**9
# The optional inputs, and up to how many tokens the kernels go token by token. Along directions they never do.
each_way = pytest.mark.parametrize(
    ("given", "up_to"),
    [("", CHUNKS), ("a", CHUNKS), ("beta", CHUNKS), ("a beta", CHUNKS), ("", TOKENS), ("beta", TOKENS)],
    ids=["keys-chunks", "a-chunks", "beta-chunks", "a beta-chunks", "keys-tokens", "beta-tokens"],
)


def make(
    T: int, given: str = "", D: int = 16, Dv: int = 16, batch: int = 2, rows: int = 2, H: int = 1
) -> tuple[dict[str, torch.Tensor], varla.MemoryState]:
    """The inputs by name, and a state. Directions are short, or S would grow without bound."""
    widths = {"q": D, "k": D, "v": Dv, "a": D}
    inputs = {name: randn(batch, T, H, width, seed=i) for i, (name, width) in enumerate(widths.items())}
    inputs["a"] = inputs["a"] / 8
    inputs["beta"] = 2 * randn(batch, T, H, seed=5).sigmoid()
    inputs["decay"] = logsigmoid(3 * randn(batch, T, H, seed=6))
    state = vla_state(rows, H, D, Dv)
    found = {name: x for name, x in inputs.items() if name in ("q", "k", "v", *given.split())}
    return found, varla.MemoryState(state.S, state.z, state.t)


def outcome(
    inputs: dict[str, torch.Tensor], state: varla.MemoryState, dtype: torch.dtype, device: str, **options: Any
) -> dict[str, torch.Tensor]:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    state = of_type(state, wide).to(device)

    def call(*tensors: torch.Tensor, **keywords: Any) -> Any:
        return varla.memory(**dict(zip(inputs, tensors, strict=True)), **keywords)

    return with_gradients(call, [x.to(device, dtype) for x in inputs.values()], state, **options)


def assert_agrees(
    inputs: dict[str, torch.Tensor],
    state: varla.MemoryState,
    tolerance: float = 1e-5,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> None:
    """Outputs, final state and all gradients of the kernels within `tolerance` (by norm) of the loop in float64."""
    inputs = {name: x.to(dtype).double() for name, x in inputs.items()}
    state = state.of(x.float().double() if x.is_floating_point() else x for x in state.tensors().values())
    wanted = outcome(inputs, state, torch.float64, "cpu", backend="reference", **options)
    got = outcome(inputs, state, dtype, DEVICE, backend="triton", **options)
    assert got.keys() == wanted.keys()
    assert {got[name].dtype for name in ("o", *(f"d {i}" for i in range(len(inputs))))} == {dtype}
    assert (got["S"].dtype, got["z"].dtype) == (torch.float32, torch.float64)
    errors = {name: relative(got[name], wanted[name]) for name in wanted}
    limits = {f"d {i}": min(tolerance, 1e-2) for i, name in enumerate(inputs) if name == "beta"}
    assert not {name: error for name, error in errors.items() if not error <= limits.get(name, tolerance)}


@pytest.mark.parametrize("given", ["", "a", "beta", "a beta"])
@pytest.mark.parametrize("T", [1, 16, 63, 64, 65, 150])
def test_every_length(T: int, given: str) -> None:
    """Up to 64 tokens one after the other where that can be, beyond in chunks."""
    assert_agrees(*make(T, given))


@pytest.mark.parametrize("given", ["", "a beta"], ids=["keys", "a, beta"])
def test_several_spans(given: str) -> None:
    assert_agrees(*make(530, given, batch=1, rows=1))


@each_way
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_setting(options: dict[str, Any], given: str, up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    go_token_by_token(monkeypatch, up_to)
    inputs, state = make(20, given)
    inputs["k"] = inputs["k"] / (1 if options.get("normalize_key", True) else 8)
    assert_agrees(inputs, state, **options)


@each_way
@pytest.mark.parametrize(("D", "Dv"), [(5, 4), (24, 40), (16, 65)])
def test_every_width(D: int, Dv: int, given: str, up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    go_token_by_token(monkeypatch, up_to)
    for normalizer in (True, False):
        assert_agrees(*make(20, given, D, Dv), normalizer=normalizer)


@each_way
@pytest.mark.parametrize("options", [{}, NO_NORMALIZER, {"error": False}], ids=str)
def test_packed(options: dict[str, Any], given: str, up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    go_token_by_token(monkeypatch, up_to)
    lengths = [20, 0, 64, 1, 9, 0]
    inputs, state = make(sum(lengths), given, batch=1, rows=len(lengths))
    assert_agrees(inputs, state, cu_seqlens=torch.tensor([0, *lengths]).cumsum(0), **options)


@pytest.mark.parametrize("T", [1, 20, 64, 70, 130])
@pytest.mark.parametrize("given", ["decay", "beta decay", "a decay", "a beta decay"])
def test_a_decay(given: str, T: int) -> None:
    for options in ({}, NO_NORMALIZER, {"error": False}, {"error": False, "normalizer": False}):
        assert_agrees(*make(T, given), **options)


@pytest.mark.parametrize("log", [-5.0, -40.0, -1e4, -float("inf"), 0.0, -1e-6])
def test_strong_and_weak_decays(log: float) -> None:
    """Also among others: no digits of a decay are lost after strong ones."""
    for every in (1, 5):
        inputs, state = make(70, "a beta decay")
        inputs["decay"][:, ::every] = log
        assert_agrees(inputs, state, tolerance=2e-5)


def test_a_decay_after_the_prediction_is_for_other_forms() -> None:
    """The kernels have it only without directions and z, for `decayed_delta_rule`."""
    inputs = {name: x.float().to(DEVICE) for name, x in make(9, "decay")[0].items()}
    with pytest.raises(RuntimeError, match="with decay_first=False the kernels take no directions and keep no z"):
        varla.memory(**inputs, decay_first=False, backend="triton")
    got, wanted = (varla.memory(**inputs, decay_first=False, backend=backend) for backend in ("auto", "chunk"))
    assert torch.equal(got, wanted)


@each_way
def test_zero_directions_and_keys(given: str, up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    go_token_by_token(monkeypatch, up_to)
    inputs, state = make(20, given)
    inputs["k"][:, 3:5] = 0
    if "a" in inputs:
        inputs["a"][:, 4:7] = 0
    assert_agrees(inputs, state, feature_map="identity", normalizer=False)


def low_precision(given: str) -> float:
    """The bound for bfloat16 inputs; that of beta's gradient stays 1e-2.

    With strengths up to 2, S does not shrink where it is written, and its gradient keeps more rounding errors.
    """
    return 1.5e-2 if DEVICE == "cuda" and "beta" in given else 1e-2


@each_way
def test_low_precision_inputs(given: str, up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    round_to_nearest(monkeypatch)
    go_token_by_token(monkeypatch, up_to)
    for options in ({}, NO_NORMALIZER, {"error": False}):
        assert_agrees(*make(70, given), tolerance=low_precision(given), dtype=torch.bfloat16, **options)


@pytest.mark.parametrize("T", [20, 70])
@pytest.mark.parametrize("given", ["beta", "a beta decay"])
def test_low_precision_with_strengths_at_and_near_zero(given: str, T: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """There the gradient of beta is computed in another way."""
    round_to_nearest(monkeypatch)
    inputs, state = make(T, given)
    inputs["beta"][:, ::3] = 0
    inputs["beta"][:, 1::9] = 1e-30
    inputs["beta"][:, 2::9] = 1e-6
    assert_agrees(inputs, state, tolerance=low_precision(given), dtype=torch.bfloat16, **NO_NORMALIZER)


@each_way
def test_no_tokens(given: str, up_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    go_token_by_token(monkeypatch, up_to)
    inputs, state = make(0, given)
    got = outcome(inputs, state, torch.float32, DEVICE, backend="triton")
    assert got["o"].shape == (2, 0, 1, 16)
    assert torch.equal(got["S"].cpu(), state.S.float())
    assert torch.equal(got["z"].cpu(), state.z)
