"""The paper's "DeltaNet" by its kernels against the plain loop in float64: on a GPU, or in Triton's interpreter."""

from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

import varla
from tests.ops.cases import randn, with_gradients
from tests.ops.triton.cases import DEVICE, gpu, relative

pytest.importorskip("triton")

from varla.ops.triton import decayed
from varla.ops.triton.decayed import EVERY

B, H = 2, 2


def make(
    T: int, D: int = 16, Dv: int = 16, *, channel: bool, batch: int = B, rows: int = B
) -> tuple[list[torch.Tensor], varla.DeltaRuleState]:
    inputs = [randn(batch, T, H, d, seed=i) for i, d in enumerate((D, D, Dv))]
    gate = 3 * randn(batch, T, H, Dv, seed=5)
    gate[:, 4::9, :, 0] -= 40  # now and then a gate closes altogether
    inputs.append(logsigmoid(gate if channel else gate[..., 0]))
    return inputs, varla.DeltaRuleState(randn(rows, H, Dv, D, seed=7), torch.arange(rows))


def outcome(
    inputs: list[torch.Tensor], state: varla.DeltaRuleState, dtype: torch.dtype, device: str, **options: Any
) -> dict[str, torch.Tensor]:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    state = varla.DeltaRuleState(state.S.to(device, wide), state.t.to(device))
    return with_gradients(varla.decayed_delta_rule, [x.to(device, dtype) for x in inputs], state, **options)


def assert_agrees(
    inputs: list[torch.Tensor], state: varla.DeltaRuleState, tolerance: float = 1e-5, **options: Any
) -> None:
    inputs, state = [x.float().double() for x in inputs], varla.DeltaRuleState(state.S.float().double(), state.t)
    got = outcome(inputs, state, torch.float32, DEVICE, backend="triton", **options)
    wanted = outcome(inputs, state, torch.float64, "cpu", backend="reference", **options)
    assert got.keys() == wanted.keys()
    errors = {name: relative(got[name], wanted[name]) for name in wanted}
    assert not {name: error for name, error in errors.items() if not error <= tolerance}


@pytest.mark.parametrize("channel", [False, True])
@pytest.mark.parametrize("T", [1, EVERY - 1, EVERY, EVERY + 1, 3 * EVERY + 2])
def test_every_length(T: int, channel: bool) -> None:
    assert_agrees(*make(T, channel=channel))


@pytest.mark.parametrize(("D", "Dv"), [(1, 1), (5, 4), (24, 40), (16, 65), (128, 17)])
def test_every_width(D: int, Dv: int) -> None:
    inputs, state = make(5, D, Dv, channel=True)
    inputs[1] = inputs[1] / D**0.5
    assert_agrees(inputs, state, normalize_key=D > 1)  # of a unit key of one dimension, the gradient is zero


def test_keys_as_they_are() -> None:
    inputs, state = make(20, channel=True)
    inputs[1] = inputs[1] / 8
    assert_agrees(inputs, state, normalize_key=False)


def test_a_gate_that_is_shut() -> None:
    inputs, state = make(20, channel=True)
    inputs[3] = inputs[3].clone()
    inputs[3][:, 7] = -float("inf")
    assert_agrees(inputs, state)


def test_a_zero_key_writes_nothing() -> None:
    inputs, state = make(20, channel=True)
    inputs[1][:, 3] = 0
    assert_agrees(inputs, state)


@pytest.mark.parametrize("channel", [False, True])
def test_packed(channel: bool) -> None:
    lengths = [20, 0, EVERY, 1, 2 * EVERY - 1, 3]
    inputs, state = make(sum(lengths), channel=channel, batch=1, rows=len(lengths))
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    assert_agrees(inputs, state, cu_seqlens=cu_seqlens)


def test_wrong_packing_is_refused() -> None:
    inputs, _ = make(8, channel=True, batch=1, rows=1)
    with pytest.raises(ValueError, match="must end with the number of packed tokens T = 8"):
        varla.decayed_delta_rule(
            *(x.float().to(DEVICE) for x in inputs), cu_seqlens=torch.tensor([0, 9]), backend="triton"
        )


def test_no_tokens() -> None:
    inputs, state = make(0, channel=True)
    got = outcome(inputs, state, torch.float32, DEVICE, backend="triton")
    assert got["o"].shape == (B, 0, H, 16)
    assert torch.equal(got["S"].cpu(), state.S.float())


def test_low_precision_inputs() -> None:
    inputs, state = make(20, channel=True)
    inputs = [x.bfloat16().double() for x in inputs]
    got = outcome(inputs, state, torch.bfloat16, DEVICE, backend="triton")
    wanted = outcome(inputs, varla.DeltaRuleState(state.S.float().double(), state.t), torch.float64, "cpu")
    assert got["o"].dtype == torch.bfloat16
    assert got["S"].dtype == torch.float32
    assert {name: x.dtype for name, x in got.items() if name.startswith("d ") and name != "d S"} == {
        f"d {i}": torch.bfloat16 for i in range(4)
    }
    for name in wanted:
        assert relative(got[name], wanted[name]) <= 2 * torch.finfo(torch.bfloat16).eps


def test_every_element_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs, state = make(EVERY + 3, 5, 33, channel=True)
    clean = outcome(inputs, state, torch.float32, DEVICE, backend="triton")

    def poisoned(make: Any) -> Any:
        def empty(*args: Any, **options: Any) -> torch.Tensor:
            x: torch.Tensor = make(*args, **options)
            return x.fill_(float("nan")) if x.is_floating_point() else x

        return empty

    for name in ("empty", "empty_like"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    found = outcome(inputs, state, torch.float32, DEVICE, backend="triton")
    monkeypatch.undo()
    assert {name for name, x in clean.items() if not torch.equal(x, found[name])} == set()


def test_as_an_operator() -> None:
    inputs, state = make(5, channel=True)
    settings = "DecayedDeltaRuleSettings True"
    leaves = [x.float().to(DEVICE).requires_grad_() for x in inputs]
    arguments = (leaves, [state.S.float().to(DEVICE).requires_grad_()], state.t.to(DEVICE), None, settings, True)
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(torch.ops.varla.decayed_triton.default, arguments, test_utils=checks)
    assert set(found.values()) == {"SUCCESS"}


def test_what_it_refuses() -> None:
    inputs, _ = make(5, channel=True)
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

    @pytest.mark.parametrize(("D", "Dv"), [(128, 128), (64, 64), (48, 80), (32, 32)])
    def test_a_long_sequence(self, D: int, Dv: int) -> None:
        inputs, state = make(400, D, Dv, channel=True)
        assert_agrees(inputs, state, 2e-5)

    def test_auto_takes_it(self) -> None:
        inputs, _ = make(2000, channel=True)
        single = [x.float().cuda() for x in inputs]
        got, wanted = (varla.decayed_delta_rule(*single, backend=backend) for backend in ("auto", "triton"))
        assert torch.equal(got, wanted)

    def test_the_same_twice(self) -> None:
        inputs, state = make(100, 32, 64, channel=True)
        first, second = (outcome(inputs, state, torch.float32, "cuda", backend="triton") for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in first)


def test_slots_do_not_overlap() -> None:
    """What a sequence keeps begins at (tokens before) // EVERY + (sequences before), and there is room for all."""
    for lengths in ([1] * 40, [EVERY - 1] * 9, [EVERY + 1] * 9, [0, 0, 5, 33, 0, 16]):
        taken, begin = [], 0
        for sequence, length in enumerate(lengths):
            taken += [begin // EVERY + sequence + i for i in range(-(-length // EVERY))]
            begin += length
        assert len(set(taken)) == len(taken)
        x = torch.empty(1, begin, 1, 1)
        assert max(taken, default=0) < decayed._slots([x], torch.zeros(len(lengths)), True)
