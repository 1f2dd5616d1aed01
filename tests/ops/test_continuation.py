"""A sequence can be left and taken up again anywhere, by any backend: outputs, states and gradients stay the same."""

from itertools import accumulate

import pytest
import torch

from tests.ops.cases import assert_same
from tests.ops.operators import (
    DV,
    OPS,
    OPS_AND_BACKENDS,
    STATES,
    B,
    D,
    H,
    T,
    call,
    call_apart,
    call_in_pieces,
    floats,
    make_inputs,
    make_state,
    outcome,
    part,
    row,
)

each_op = pytest.mark.parametrize("op", OPS)
each_op_and_backend = pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
each_backend_of_vla = pytest.mark.parametrize("backend", ["reference", "chunk"])


def options_of(op):
    """A refresh that falls inside and between the pieces below."""
    return {"refresh_every": 4, "refresh": 0.05} if op == "vla" else {}


def assert_unchanged(op, state, **made):
    expected = make_state(op, **made).tensors()
    assert all(torch.equal(x, expected[name]) for name, x in state.tensors().items())


# --- Pieces and steps -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pieces",
    [(1,) * T, (5, 5, 5, 2), (1, T - 1), (T - 1, 1), (6, 5, 6), (4, 4, 0, 8, 1)],
    ids=lambda pieces: "-".join(map(str, pieces)),
)
@each_op_and_backend
def test_pieces_make_the_whole(op, backend, pieces):
    inputs, state, options = make_inputs(op), make_state(op), options_of(op)
    expected = outcome(op, inputs, state, backend="reference", **options)
    bounds, forms = [0, *accumulate(pieces)], [{"backend": backend}] * len(pieces)
    assert_same(outcome(op, inputs, state, by=call_in_pieces, bounds=bounds, forms=forms, **options), expected)
    assert all(x.abs().max() > 0 for x in expected.values())
    assert_unchanged(op, state)


@each_op
def test_steps_make_the_whole(op):
    inputs, options = make_inputs(op), options_of(op)
    for state in (make_state(op), None):
        expected = outcome(op, inputs, state, backend="reference", **options)
        assert_same(outcome(op, inputs, state, backend="step", **options), expected)


@pytest.mark.parametrize(
    "options",
    [
        {"gain": "projection", "feature_map": "identity", "normalizer": False},
        {"gain": "raw", "lambda0": 1.5, "penalty_scale": 1.0},
        {"normalize_key": False, "lambda0": 5.0},
        {"update_penalty": False},
        {"eps": 10.0},
        {"refresh_every": None},
        {"refresh_every": 2, "refresh": 0.3},
    ],
    ids=str,
)
def test_steps_take_every_setting(options):
    inputs, usual = make_inputs("vla"), options_of("vla")
    options = {**usual, **options}
    expected = outcome("vla", inputs, backend="reference", **options)
    assert (expected["o"] - call("vla", inputs, backend="reference", **usual)).abs().max() > 1e-3
    assert_same(outcome("vla", inputs, backend="step", **options), expected)


@each_backend_of_vla
def test_the_refresh_is_counted_by_each_row_for_itself(backend):
    inputs, state = make_inputs("vla", batch=3, time=5), make_state("vla", batch=3)
    inputs["u"] = torch.zeros_like(inputs["u"])
    state.t = torch.tensor([0, 3, 6])
    options = {"backend": backend, "refresh_every": 4, "refresh": 0.5}
    _, after = call("vla", inputs, initial_state=state, return_state=True, **options)
    assert after.t.tolist() == [5, 8, 11]
    grown = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64) * 0.5
    expected = state.A + grown[:, None, None, None] * torch.eye(D, dtype=torch.float64)
    assert_same({"A": after.A}, {"A": expected})


@each_backend_of_vla
def test_lambda0_is_unused_where_there_is_a_state(backend):
    inputs, state = make_inputs("vla"), make_state("vla")
    assert torch.equal(*(call("vla", inputs, initial_state=state, backend=backend, lambda0=x) for x in (0.1, 7.0)))


@pytest.mark.parametrize(("op", "backend"), [*OPS_AND_BACKENDS, *((op, "step") for op in OPS)])
def test_the_state_that_comes_back_is_not_the_one_that_went_in(op, backend):
    state = make_state(op)
    _, after = call(op, make_inputs(op), initial_state=state, return_state=True, backend=backend)
    for x in after.tensors().values():
        x.zero_()
    assert_unchanged(op, state)


# --- Gradients --------------------------------------------------------------------------------------------------------


@each_op_and_backend
def test_gradients_of_and_by_the_state_are_right(op, backend):
    inputs, state = make_inputs(op, batch=1, time=4), make_state(op, batch=1)

    def function(*values):
        given = dict(zip(inputs, values[: len(inputs)], strict=True))
        tensors = dict(zip(floats(state), values[len(inputs) :], strict=True))
        if op == "vla":
            tensors["A"] = (tensors["A"] + tensors["A"].mT) / 2
        start = STATES[op](**tensors, t=state.t)
        o, after = call(op, given, initial_state=start, return_state=True, backend=backend, **options_of(op))
        return (o, *floats(after).values())

    leaves = [x.requires_grad_() for x in (*inputs.values(), *floats(state).values())]
    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)


@each_op_and_backend
def test_a_detached_state_stops_gradients(op, backend):
    inputs = {name: x.requires_grad_() for name, x in make_inputs(op).items()}
    _, state = call(op, part(inputs, 0, 8), return_state=True, backend=backend)
    o = call(op, part(inputs, 8, T), initial_state=state.detach(), backend=backend)
    o.square().sum().backward()
    assert torch.equal(inputs["v"].grad[:, :8], torch.zeros(B, 8, H, DV, dtype=torch.float64))
    assert inputs["v"].grad[:, 8:].abs().min() > 0


@each_op_and_backend
def test_a_loss_on_one_tensor_of_the_state_alone_has_gradients(op, backend):
    inputs = {name: x.requires_grad_() for name, x in make_inputs(op).items()}
    states = [call(op, inputs, return_state=True, backend=x)[1] for x in (backend, "reference")]
    for name in floats(states[0]):
        got, wanted = (
            torch.autograd.grad(
                getattr(state, name).square().sum(),
                list(inputs.values()),
                allow_unused=True,
                materialize_grads=True,
                retain_graph=True,
            )
            for state in states
        )
        assert_same(dict(zip(inputs, got, strict=True)), dict(zip(inputs, wanted, strict=True)))


# --- Packed sequences -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(5, 0, 9, 3), (17,), (1,) * 17, (0, 0, 8, 9, 0)], ids=str)
@each_op_and_backend
def test_packed_sequences_each_have_their_state(op, backend, lengths):
    inputs, state, options = make_inputs(op, batch=1), make_state(op, batch=len(lengths)), options_of(op)
    bounds = [0, *accumulate(lengths)]
    expected = outcome(op, inputs, state, by=call_apart, bounds=bounds, backend="reference", **options)
    got = outcome(op, inputs, state, cu_seqlens=torch.tensor(bounds), backend=backend, **options)
    assert_same(got, expected)
    assert_unchanged(op, state, batch=len(lengths))
    for i, length in enumerate(lengths):
        if length == 0:
            assert all(torch.equal(got[name][i], x[i]) for name, x in state.tensors().items())


@each_op_and_backend
def test_an_empty_sequence_lets_gradients_through(op, backend):
    inputs, state = make_inputs(op, batch=1), make_state(op, batch=3)
    leaves = {name: x.requires_grad_() for name, x in floats(state).items()}
    offsets = torch.tensor([0, 8, 8, T])
    o, after = call(op, inputs, cu_seqlens=offsets, initial_state=state, return_state=True, backend=backend)
    loss = o.sum() + sum(3 * x[1].sum() for x in floats(after).values())
    for x, grad in zip(leaves.values(), torch.autograd.grad(loss, list(leaves.values())), strict=True):
        assert torch.equal(grad[1], torch.full_like(x[1], 3))


@each_op_and_backend
def test_packed_and_padded_calls_can_take_turns(op, backend):
    inputs, more, options = make_inputs(op, batch=1), make_inputs(op, time=3, seed=4), options_of(op)
    options |= {"return_state": True}
    _, state = call(op, inputs, cu_seqlens=torch.tensor([0, 7, T]), backend=backend, **options)
    o, state = call(op, more, initial_state=state, backend=backend, **options)
    for i, (begin, end) in enumerate(((0, 7), (7, T))):
        whole = {name: torch.cat([x[:, begin:end], more[name][i : i + 1]], dim=1) for name, x in inputs.items()}
        expected, after = call(op, whole, backend="reference", **options)
        got = {"o": o[i : i + 1], **row(state, i).tensors()}
        assert_same(got, {"o": expected[:, -3:], **after.tensors()})
