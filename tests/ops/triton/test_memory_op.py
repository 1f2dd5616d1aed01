"""Linear attention and the delta rule by VLA's kernels against the plain loops in float64: on a GPU or interpreted."""

from functools import partial
from importlib import import_module
from typing import Any

import pytest
import torch

import varla
from tests.ops.cases import flat, randn
from tests.ops.triton.cases import DEVICE, assert_fakes_agree, gpu, relative, round_to_nearest
from tests.ops.triton.mechanisms import (
    KINDS,
    B,
    H,
    assert_agrees,
    assert_every_element_is_written,
    go_token_by_token,
    make,
    outcome,
)
from varla.ops.memory.settings import MemorySettings
from varla.ops.triton.plan import CHUNK

pytest.importorskip("triton")

from varla.ops.memory.triton.op import memory_triton

CHUNKED = ("linear", "delta")


@pytest.fixture(autouse=True)
def _in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """However short the sequences."""
    go_token_by_token(monkeypatch, up_to=0)


def test_this_is_about_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: Any) -> None:
        raise AssertionError("token by token")

    monkeypatch.setattr(import_module("varla.ops.memory.triton.op"), "recurrent_triton", never)
    for kind in CHUNKED:
        outcome(kind, *make(kind, 3), torch.float32, DEVICE, backend="triton")
    monkeypatch.undo()
    monkeypatch.setattr(import_module("varla.ops.memory.triton.op"), "recurrent_triton", never)
    for kind in CHUNKED:
        with pytest.raises(AssertionError, match="token by token"):
            outcome(kind, *make(kind, 3), torch.float32, DEVICE, backend="triton")


@pytest.mark.parametrize("kind", CHUNKED)
@pytest.mark.parametrize("T", [1, CHUNK - 1, CHUNK, 2 * CHUNK + 5])
def test_every_length(T: int, kind: str) -> None:
    assert_agrees(kind, *make(kind, T))


@pytest.mark.parametrize("kind", CHUNKED)
@pytest.mark.parametrize(("D", "Dv"), [(5, 4), (24, 40), (16, 130), (64, 16)])
def test_every_width(D: int, Dv: int, kind: str) -> None:
    assert_agrees(kind, *make(kind, CHUNK + 3, D, Dv))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("linear", {"normalizer": False}),
        ("linear", {"feature_map": "identity", "normalizer": False}),
        ("linear", {"eps": 30.0}),
        ("delta", {"feature_map": "elu1", "scale": 0.3}),
        ("delta", {"normalize_query": False}),
        ("delta", {"normalize_key": False}),
    ],
)
def test_every_setting(kind: str, options: dict[str, Any]) -> None:
    inputs, state = make(kind, CHUNK + 6)
    inputs[1] = inputs[1] / (1 if options.get("normalize_key", True) else 8)
    assert_agrees(kind, inputs, state, **options)


@pytest.mark.parametrize("kind", CHUNKED)
def test_packed(kind: str) -> None:
    lengths = [20, 0, CHUNK, 1, CHUNK + 9, 3]
    inputs, state = make(kind, sum(lengths), batch=1, sequences=len(lengths))
    assert_agrees(kind, inputs, state, cu_seqlens=torch.tensor([0, *lengths]).cumsum(0))


@pytest.mark.parametrize("kind", CHUNKED)
def test_no_tokens(kind: str) -> None:
    inputs, state = make(kind, 0)
    got = outcome(kind, inputs, state, torch.float32, DEVICE, backend="triton")
    assert got["o"].shape == (B, 0, H, 16)
    assert torch.equal(got["S"].cpu(), state.S.float())


@pytest.mark.parametrize("kind", CHUNKED)
@pytest.mark.parametrize(("D", "dtype"), [(16, torch.bfloat16), (24, torch.bfloat16), (16, torch.float16)])
def test_low_precision_inputs(D: int, dtype: torch.dtype, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    round_to_nearest(monkeypatch)
    inputs, state = make(kind, CHUNK + 6, D)
    inputs = [x.to(dtype).double() for x in inputs]
    state = state.of(x.float().double() if x.is_floating_point() else x for x in state.tensors().values())
    got = outcome(kind, inputs, state, dtype, DEVICE, backend="triton")
    wanted = outcome(kind, inputs, state, torch.float64, "cpu")
    assert got["o"].dtype == dtype
    assert got["S"].dtype == torch.float32
    assert {got[f"d {i}"].dtype for i in range(len(inputs))} == {dtype}
    for name in wanted:
        assert relative(got[name], wanted[name]) <= 1e-2, name


@pytest.mark.parametrize("kind", CHUNKED)
def test_every_element_is_written(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, state = make(kind, CHUNK + 3, 5, 33)
    assert_every_element_is_written(kind, inputs, state, monkeypatch)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("error", [True, False])
def test_as_an_operator(error: bool, gated: bool) -> None:
    q, k, v, a = (randn(B, 5, H, d, seed=i).float().to(DEVICE).requires_grad_() for i, d in enumerate((8, 8, 6, 8)))
    S, z = (randn(B, H, *shape, seed=5).float().to(DEVICE).requires_grad_() for shape in ((6, 8), (8,)))
    settings = MemorySettings(feature_map="identity", normalizer=not error, normalize_key=False, error=error)
    t = torch.zeros(B, dtype=torch.int64, device=DEVICE)
    gates = [torch.full_like(q[..., :1], value).requires_grad_() for value in ((0.7, -0.5) if gated else ())]
    arguments = flat((q, k, v, a, *(gates or (None, None)), S, z, t, None, settings, True))
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(memory_triton.registered, arguments, test_utils=checks)
    assert set(found.values()) == {"SUCCESS"}
    call = partial(memory_triton.registered, *arguments)
    assert_fakes_agree(call, [q, k, v, a, *gates, S, z], "memory_triton", "memory_triton_backward")


def test_double_backward_is_refused() -> None:
    leaves = [x.float().to(DEVICE).requires_grad_() for x in make("delta", 5)[0]]
    (first,) = torch.autograd.grad(varla.delta_rule(*leaves, backend="triton").sum(), leaves[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported by backend='triton'"):
        first.sum().backward()


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("kind", CHUNKED)
    @pytest.mark.parametrize(("D", "Dv"), [(128, 128), (64, 64), (48, 80), (32, 32)])
    def test_a_long_sequence(self, D: int, Dv: int, kind: str) -> None:
        assert_agrees(kind, *make(kind, 1000, D, Dv), 2e-5)

    @pytest.mark.parametrize("kind", CHUNKED)
    @pytest.mark.parametrize("D", [32, 64, 128])
    def test_bfloat16(self, D: int, kind: str) -> None:
        inputs = [x.bfloat16().cuda() for x in make(kind, 3000, D, D)[0]]
        got, wanted = (KINDS[kind](*inputs, backend=backend) for backend in ("triton", "chunk"))
        assert relative(got, wanted) <= 1e-2

    @pytest.mark.parametrize("kind", CHUNKED)
    def test_the_same_twice(self, kind: str) -> None:
        inputs, state = make(kind, 300, 32, 64)
        first, second = (outcome(kind, inputs, state, torch.float32, "cuda", backend="triton") for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)
