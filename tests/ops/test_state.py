"""The states: what they hold, and how they are moved and copied. Files: test_state_file.py."""

import pytest
import torch
from torch.utils import _pytree as pytree

from tests.ops.operators import (
    DV,
    FIELDS,
    KINDS,
    OPS,
    OPS_AND_BACKENDS,
    STATES,
    B,
    D,
    H,
    T,
    call,
    call_step,
    make_inputs,
    make_state,
    token,
)
from varla.ops.state import PRECISIONS

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
each_kind = pytest.mark.parametrize("kind", KINDS)


def assert_same_state(kind, got, expected):
    assert type(got) is STATES[kind]
    for name, x in expected.tensors().items():
        assert getattr(got, name).dtype == x.dtype, name
        assert torch.equal(getattr(got, name), x), name


# --- What a state holds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_shapes_and_types(op, backend, dtype):
    inputs, state = make_inputs(op, dtype=dtype), None
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    shapes = {"S": (B, H, DV, D), "A": (B, H, D, D), "z": (B, H, D), "f": (B, H), "t": (B,)}
    for seen in (T, 2 * T):
        o, state = call(op, inputs, backend=backend, initial_state=state, return_state=True)
        assert o.dtype == dtype
        assert o.shape == (B, T, H, DV)
        assert type(state) is STATES[op]
        assert list(state.tensors()) == list(FIELDS[STATES[op]])
        for name, x in state.tensors().items():
            assert x is getattr(state, name)
            assert x.shape == shapes[name]
            assert x.dtype == PRECISIONS.get(name, kept)
        assert state.t.tolist() == [seen] * B


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_shapes_and_types_of_a_step(op, dtype):
    inputs, state = token(make_inputs(op, dtype=dtype), 0), None
    for seen in (1, 2, 3):
        o, state = call_step(op, inputs, state=state)
        assert o.dtype == dtype
        assert o.shape == (B, H, DV)
        assert type(state) is STATES[op]
        assert state.S.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert state.t.dtype == torch.int64
        assert state.t.tolist() == [seen] * B


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_without_return_state_there_is_only_the_output(op, backend):
    inputs = make_inputs(op)
    o = call(op, inputs, backend=backend)
    assert isinstance(o, torch.Tensor)
    assert torch.equal(o, call(op, inputs, backend=backend, return_state=True)[0])


@each_kind
def test_the_size_does_not_depend_on_the_tokens_seen(kind):
    counts = {"S": H * DV * D, "A": H * D * D, "z": H * D, "f": H, "t": 0}
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 4), (torch.float64, 8)):
        expected = B * (sum(counts[name] * (8 if name == "z" else size) for name in FIELDS[STATES[kind]]) + 8)
        for time in (0, 1, T):
            _, state = call(kind, make_inputs(kind, time=time, dtype=dtype), return_state=True)
            assert state.nbytes == expected


# --- Moving, cutting, copying -----------------------------------------------------------------------------------------


@each_kind
def test_printed_it_shows_shapes_and_size_not_numbers(kind):
    state = make_state(kind)
    fields = [f"{name} {str(x.dtype)[6:]} {list(x.shape)}" for name, x in state.tensors().items()]
    assert repr(state) == f"{STATES[kind].__name__}({', '.join(fields)}; cpu, {state.nbytes:,} bytes)"


@each_kind
def test_to_moves_every_tensor(kind):
    state = make_state(kind)
    moved = state.to("meta")
    assert type(moved) is STATES[kind]
    assert all(x.is_meta for x in moved.tensors().values())
    assert {n: (x.shape, x.dtype) for n, x in moved.tensors().items()} == {
        n: (x.shape, x.dtype) for n, x in state.tensors().items()
    }
    assert not state.S.is_meta
    assert_same_state(kind, state.to(torch.device("cpu")), make_state(kind))


@each_kind
def test_detach_cuts_the_graph_and_keeps_the_values(kind):
    inputs = {name: x.requires_grad_() for name, x in make_inputs(kind).items()}
    _, state = call(kind, inputs, return_state=True)
    assert state.S.requires_grad
    cut = state.detach()
    assert_same_state(kind, cut, state)
    assert not any(x.requires_grad for x in cut.tensors().values())
    assert state.S.requires_grad


@each_kind
def test_clone_shares_no_memory_and_stays_in_the_graph(kind):
    state = make_state(kind)
    copy = state.clone()
    assert_same_state(kind, copy, state)
    for x in copy.tensors().values():
        x.zero_()
    assert_same_state(kind, state, make_state(kind))
    state.S.requires_grad_()
    state.clone().S.sum().backward()
    assert torch.equal(state.S.grad, torch.ones_like(state.S))


@each_kind
def test_tree_functions_see_the_tensors(kind):
    state = make_state(kind)
    leaves, spec = pytree.tree_flatten({"layers": [state]})
    assert len(leaves) == len(FIELDS[STATES[kind]])
    assert_same_state(kind, pytree.tree_unflatten(leaves, spec)["layers"][0], state)
    doubled = pytree.tree_map(lambda x: 2 * x, (state, state))[1]
    assert_same_state(kind, doubled, STATES[kind](**{name: 2 * x for name, x in state.tensors().items()}))
    assert_same_state(kind, state, make_state(kind))
