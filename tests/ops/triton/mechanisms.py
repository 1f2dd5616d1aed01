"""Linear attention and the delta rules by their kernels: inputs, results, and how they are held against the loops."""

from importlib import import_module
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid

import varla
from tests.ops.cases import of_type, randn, with_gradients
from tests.ops.triton.cases import DEVICE, relative

B, H = 2, 2
# "gate" and "channel" are the paper's "DeltaNet", with one gate a head or one for every value channel.
KINDS = {
    "linear": varla.linear_attention,
    "delta": varla.delta_rule,
    "gate": varla.decayed_delta_rule,
    "channel": varla.decayed_delta_rule,
}
State = varla.LinearAttentionState | varla.DeltaRuleState


def go_token_by_token(monkeypatch: pytest.MonkeyPatch, up_to: int) -> None:
    """From so many tokens on, the kernels of linear attention and the delta rule go in chunks."""
    monkeypatch.setattr(import_module("varla.ops.memory.triton.op"), "RECURRENT_TOKENS", up_to)


def make(
    kind: str, T: int, D: int = 16, Dv: int = 16, batch: int = B, sequences: int = B
) -> tuple[list[torch.Tensor], State]:
    inputs = [randn(batch, T, H, d, seed=i) for i, d in enumerate((D, D, Dv))]
    S, t = randn(sequences, H, Dv, D, seed=7), torch.arange(sequences)
    gate = 3 * randn(batch, T, H, Dv, seed=5)
    gate[:, 4::9, :, 0] -= 40  # now and then a gate closes altogether
    if kind == "linear":
        return inputs, varla.LinearAttentionState(S, randn(sequences, H, D, seed=8).abs(), t)
    if kind == "delta":
        return [*inputs, gate[..., 0].sigmoid()], varla.DeltaRuleState(S, t)
    return [*inputs, logsigmoid(gate if kind == "channel" else gate[..., 0])], varla.DeltaRuleState(S, t)


def outcome(
    kind: str, inputs: list[torch.Tensor], state: State, dtype: torch.dtype, device: str, **options: Any
) -> dict[str, torch.Tensor]:
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    state = of_type(state, wide).to(device)
    return with_gradients(KINDS[kind], [x.to(device, dtype) for x in inputs], state, **options)


def assert_agrees(kind: str, inputs: list[torch.Tensor], state: State, tolerance: float = 1e-5, **options: Any) -> None:
    inputs = [x.float().double() for x in inputs]
    state = state.of(x.float().double() if x.is_floating_point() else x for x in state.tensors().values())
    got = outcome(kind, inputs, state, torch.float32, DEVICE, backend="triton", **options)
    wanted = outcome(kind, inputs, state, torch.float64, "cpu", backend="reference", **options)
    assert got.keys() == wanted.keys()
    errors = {name: relative(got[name], wanted[name]) for name in wanted}
    assert not {name: error for name, error in errors.items() if not error <= tolerance}


def assert_every_element_is_written(
    kind: str, inputs: list[torch.Tensor], state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same bits where memory that is asked for holds NaN."""
    clean = outcome(kind, inputs, state, torch.float32, DEVICE, backend="triton")
    empty = torch.Tensor.new_empty

    def poisoned(like: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        found = empty(like, *shape, **options)
        return found.fill_(float("nan")) if found.is_floating_point() else found

    def poisoned_like(like: torch.Tensor, **options: Any) -> torch.Tensor:
        return torch.full_like(like, float("nan") if like.is_floating_point() else 0, **options)

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", poisoned_like)
    found = outcome(kind, inputs, state, torch.float32, DEVICE, backend="triton")
    monkeypatch.undo()
    assert {name for name, x in clean.items() if not torch.equal(x, found[name])} == set()
