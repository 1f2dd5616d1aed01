"""Forgetting in A: its state, its types, and what is refused."""

import copy
import pickle

import pytest
import torch

import varla
from tests.ops.cases import vla_state
from tests.ops.test_forgetting import B, H, make


@pytest.mark.parametrize("function", [varla.directions, varla.vla])
def test_the_state_is_printed_copied_and_saved(tmp_path, function):
    _, state = make(1, function)
    kind = type(state)
    state.save(tmp_path / "state")
    for found in (
        state.clone(),
        copy.deepcopy(state),
        pickle.loads(pickle.dumps(state)),
        kind.load(tmp_path / "state"),
    ):
        assert repr(found).startswith(f"{kind.__name__}(")
        assert f"f float64 [{B}, {H}]" in repr(found)
        assert all(torch.equal(x, y) for x, y in zip(found.tensors().values(), state.tensors().values(), strict=True))
    with pytest.raises(ValueError, match="does not hold a VLAState"):
        varla.VLAState.load(tmp_path / "state")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_types(dtype):
    inputs = {name: x.to(dtype) for name, x in make(30, varla.vla)[0].items()}
    for backend in ("reference", "chunk"):
        o, state = varla.vla(**inputs, refresh_every=None, return_state=True, backend=backend, beat=16)
        assert type(state) is varla.ForgettingState
        assert o.dtype == dtype
        assert state.f.dtype == state.A.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, ValueError, "forget and refresh both .*: use refresh_every=None, got 20"),
        ({"update_penalty": False, "refresh_every": None}, ValueError, "forget changes A, and update_penalty=False"),
        ({"beat": 0}, ValueError, "beat must be at least 1, got 0"),
        ({"beat": 2.5}, TypeError, "beat must be an integer"),
        (
            {"refresh_every": None, "backend": "triton"},
            RuntimeError,
            "forgetting has no kernels yet; use backend='chunk'",
        ),
    ],
)
@pytest.mark.parametrize("function", [varla.directions, varla.vla])
def test_wrong_options_are_named(function, options, error, message):
    inputs, _ = make(9, function)
    with pytest.raises(error, match=message):
        function(**inputs, **options)


@pytest.mark.parametrize(
    ("forget", "message"),
    [
        (0.1, "forget must be at most 0, got values from 0.1 to 0.1"),
        (-torch.inf, "forget must be finite"),
        (None, r"forget must have 3 dimensions \[B, T, H\]"),
    ],
)
def test_wrong_values_are_named(forget, message):
    inputs, _ = make(9)
    inputs["forget"] = inputs["k"] if forget is None else torch.full_like(inputs["forget"], forget)
    with pytest.raises(ValueError, match=message):
        varla.directions(**inputs, refresh_every=None)


def test_wrong_states_are_named():
    inputs, state = make(9, varla.vla)
    plain, token = vla_state(), {name: x[:, 0] for name, x in inputs.items()}
    with pytest.raises(TypeError, match="initial_state must be a ForgettingState or None, got VLAState"):
        varla.vla(**inputs, refresh_every=None, initial_state=plain)
    with pytest.raises(TypeError, match="state must be a ForgettingState or None, got VLAState"):
        varla.vla_step(**token, refresh_every=None, state=plain)
    with pytest.raises(RuntimeError, match="forgetting has no kernels yet; use backend='reference'"):
        varla.vla_step(**token, refresh_every=None, backend="triton")
    del inputs["forget"]
    with pytest.raises(TypeError, match="initial_state must be a VLAState or None, got ForgettingState"):
        varla.vla(**inputs, initial_state=state)
    along, start = make(9)
    with pytest.raises(TypeError, match="initial_state must be a ForgettingDirectionState or None, got DirectionState"):
        varla.directions(**along, refresh_every=None, initial_state=varla.DirectionState(start.A, start.t))
    wrong = varla.ForgettingDirectionState(start.A, start.f[:, :1], start.t)
    with pytest.raises(ValueError, match=r"initial_state.f must have shape \[B, H\] = \[2, 2\], got \[2, 1\]"):
        varla.directions(**along, refresh_every=None, initial_state=wrong)
