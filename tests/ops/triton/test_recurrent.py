"""Linear attention and the delta rules by their kernels against the plain loops in float64: on a GPU or interpreted."""

from functools import partial
from typing import Any

import pytest
import torch

import varla
from tests.ops.cases import randn
from tests.ops.triton.cases import DEVICE, assert_fakes_agree, gpu, relative
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

pytest.importorskip("triton")

from varla.ops.memory.triton import recurrent
from varla.ops.memory.triton.recurrent import EVERY


@pytest.fixture(autouse=True)
def _token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the sequences."""
    go_token_by_token(monkeypatch, up_to=10**9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("T", [1, EVERY, 2 * EVERY + 2])
def test_every_length(T: int, kind: str) -> None:
    assert_agrees(kind, *make(kind, T))


@pytest.mark.parametrize("kind", ["linear", "delta", "channel"])
@pytest.mark.parametrize(("D", "Dv"), [(5, 4), (24, 40), (16, 65), (128, 17)])
def test_every_width(D: int, Dv: int, kind: str) -> None:
    assert_agrees(kind, *make(kind, 5, D, Dv))


def test_one_dimension() -> None:
    inputs, state = make("channel", 5, 1, 1)
    assert_agrees("channel", inputs, state, normalize_key=False)  # of a unit key, the gradient would be zero


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("linear", {"normalizer": False}),
        ("linear", {"feature_map": "identity", "normalizer": False}),
        ("linear", {"eps": 30.0}),
        ("delta", {"feature_map": "elu1", "scale": 0.3}),
        ("delta", {"normalize_query": False}),
        ("delta", {"normalize_key": False}),
        ("channel", {"normalize_key": False}),
    ],
)
def test_every_setting(kind: str, options: dict[str, Any]) -> None:
    inputs, state = make(kind, 20)
    inputs[1] = inputs[1] / (1 if options.get("normalize_key", True) else 8)
    assert_agrees(kind, inputs, state, **options)


def test_a_gate_that_is_shut() -> None:
    inputs, state = make("channel", 20)
    inputs[3][:, 7] = -float("inf")
    assert_agrees("channel", inputs, state)


@pytest.mark.parametrize("kind", ["delta", "channel"])
def test_a_zero_key_writes_nothing(kind: str) -> None:
    inputs, state = make(kind, 20)
    inputs[1][:, 3] = 0
    assert_agrees(kind, inputs, state)


@pytest.mark.parametrize("kind", KINDS)
def test_packed(kind: str) -> None:
    lengths = [20, 0, EVERY, 1, 2 * EVERY - 1, 3]
    inputs, state = make(kind, sum(lengths), batch=1, sequences=len(lengths))
    assert_agrees(kind, inputs, state, cu_seqlens=torch.tensor([0, *lengths]).cumsum(0))


def test_wrong_packing_is_refused() -> None:
    inputs, _ = make("channel", 8, batch=1, sequences=1)
    with pytest.raises(ValueError, match="must end with the number of packed tokens T = 8"):
        varla.decayed_delta_rule(
            *(x.float().to(DEVICE) for x in inputs), cu_seqlens=torch.tensor([0, 9]), backend="triton"
        )


@pytest.mark.parametrize("kind", KINDS)
def test_no_tokens(kind: str) -> None:
    inputs, state = make(kind, 0)
    got = outcome(kind, inputs, state, torch.float32, DEVICE, backend="triton")
    assert got["o"].shape == (B, 0, H, 16)
    assert torch.equal(got["S"].cpu(), state.S.float())


@pytest.mark.parametrize("kind", ["linear", "delta", "channel"])
def test_low_precision_inputs(kind: str) -> None:
    inputs, state = make(kind, 20)
    inputs = [x.bfloat16().double() for x in inputs]
    state = state.of(x.float().double() if x.is_floating_point() else x for x in state.tensors().values())
    got = outcome(kind, inputs, state, torch.bfloat16, DEVICE, backend="triton")
    wanted = outcome(kind, inputs, state, torch.float64, "cpu")
    assert got["o"].dtype == torch.bfloat16
    assert got["S"].dtype == torch.float32
    assert {got[f"d {i}"].dtype for i in range(len(inputs))} == {torch.bfloat16}
    for name in wanted:
        assert relative(got[name], wanted[name]) <= 2 * torch.finfo(torch.bfloat16).eps, name


@pytest.mark.parametrize("kind", ["linear", "delta", "channel"])
def test_every_element_is_written(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, state = make(kind, EVERY + 3, 5, 33, batch=1, sequences=1)
    assert_every_element_is_written(kind, inputs, state, monkeypatch)


@pytest.mark.parametrize("kind", ["gate", "strength", "neither"])
def test_as_an_operator(kind: str) -> None:
    q, k, v = (randn(B, 5, H, d, seed=i).float().to(DEVICE).requires_grad_() for i, d in enumerate((8, 8, 6)))
    gate = torch.rand(B, 5, H, 6, device=DEVICE, requires_grad=True) if kind == "gate" else None
    beta = torch.rand(B, 5, H, device=DEVICE, requires_grad=True) if kind == "strength" else None
    S = randn(B, H, 6, 8, seed=5).float().to(DEVICE).requires_grad_()
    t = torch.zeros(B, dtype=torch.int64, device=DEVICE)
    arguments = (q, k, v, gate, beta, S, t, None, kind != "neither", True, True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(torch.ops.varla.recurrent_triton.default, arguments, test_utils=checks)
    assert set(found.values()) == {"SUCCESS"}
    leaves = [x for x in (q, k, v, gate, beta, S) if x is not None]
    call = partial(torch.ops.varla.recurrent_triton, *arguments)
    assert_fakes_agree(call, leaves, "recurrent_triton", "recurrent_triton_backward")


def test_what_it_refuses() -> None:
    inputs, _ = make("channel", 5)
    with pytest.raises(RuntimeError, match=r"cannot run here: .* use backend='chunk' for float64"):
        varla.decayed_delta_rule(*(x.to(DEVICE) for x in inputs), backend="triton")
    with pytest.raises(ValueError, match="chunk_size is for backend='chunk'"):
        varla.decayed_delta_rule(*(x.float().to(DEVICE) for x in inputs), backend="triton", chunk_size=16)
    leaves = [x.float().to(DEVICE).requires_grad_() for x in inputs]
    (first,) = torch.autograd.grad(
        varla.decayed_delta_rule(*leaves, backend="triton").sum(), leaves[:1], create_graph=True
    )
    with pytest.raises(RuntimeError, match="double backward is not supported by backend='triton'"):
        first.sum().backward()


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize(("D", "Dv"), [(128, 128), (64, 64), (48, 80), (32, 32)])
    def test_a_long_sequence(self, D: int, Dv: int, kind: str) -> None:
        inputs, state = make(kind, 400, D, Dv)
        assert_agrees(kind, inputs, state, 2e-5)

    @pytest.mark.parametrize("kind", ["gate", "channel"])
    def test_auto_takes_it(self, kind: str) -> None:
        single = [x.float().cuda() for x in make(kind, 200)[0]]
        got, wanted = (KINDS[kind](*single, backend=backend) for backend in ("auto", "triton"))
        assert torch.equal(got, wanted)

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_same_twice(self, kind: str) -> None:
        inputs, state = make(kind, 100, 32, 64)
        first, second = (outcome(kind, inputs, state, torch.float32, "cuda", backend="triton") for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_slots_do_not_overlap() -> None:
    """What a sequence keeps begins at (tokens before) // EVERY + (sequences before), and there is room for all."""
    for lengths in ([1] * 40, [EVERY - 1] * 9, [EVERY + 1] * 9, [0, 0, 5, 33, 0, 16]):
        taken, begin = [], 0
        for sequence, length in enumerate(lengths):
            taken += [begin // EVERY + sequence + i for i in range(-(-length // EVERY))]
            begin += length
        assert len(set(taken)) == len(taken)
        assert max(taken, default=0) < recurrent.slots_needed(begin, len(lengths))
