"""Algorithm 2, corrected, against Algorithm 1: outputs, states and all gradients."""

from typing import Any

import pytest
import torch

import varla
from reproduction.scan import vla_scan
from tests.ops.cases import LENGTHS, assert_same, vla_inputs, vla_state, with_gradients

OPTIONS: list[dict[str, Any]] = [
    {},
    {"refresh_every": None},
    {"gain": "projection"},
    {"gain": "raw", "lambda0": 2.0},
    {"normalizer": False},
    {"normalize_key": False, "penalty_scale": 1.0},
    {"feature_map": "identity", "normalizer": False},
    {"update_penalty": False},
    {"refresh_every": 7, "refresh": 0.1},
]


def scan(*inputs: torch.Tensor, return_state: bool = True, **options: Any) -> tuple[torch.Tensor, varla.VLAState]:
    return vla_scan(*inputs, **options)


@pytest.mark.parametrize("T", LENGTHS)
def test_every_length(T: int) -> None:
    inputs, state = vla_inputs(T), vla_state()
    assert_same(with_gradients(scan, inputs, state), with_gradients(varla.vla, inputs, state, backend="reference"))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_setting(options: dict[str, Any]) -> None:
    inputs = vla_inputs(33)
    wanted = with_gradients(varla.vla, inputs, None, backend="reference", **options)
    assert_same(with_gradients(scan, inputs, None, **options), wanted)


def test_states_keep_their_precision() -> None:
    o, state = vla_scan(*(x.bfloat16() for x in vla_inputs(5)))
    assert o.dtype == torch.bfloat16
    assert state.A.dtype == torch.float32
