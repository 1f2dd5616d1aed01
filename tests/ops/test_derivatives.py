"""Derivatives that the chunk form does not have, and other things that it refuses or leaves to the loop."""

from functools import partial

import pytest
import torch
from torch.autograd import forward_ad

from tests.ops.operators import (
    LOOPS,
    OPS,
    STATES,
    D,
    call,
    floats,
    make_inputs,
    make_state,
)

each_op = pytest.mark.parametrize("op", OPS)


def with_leaves(inputs):
    return {name: x.requires_grad_() for name, x in inputs.items()}


@pytest.mark.parametrize("name", ["q", "k", "v"])
@each_op
def test_double_backward_through_chunks_is_refused_and_not_dropped(op, name):
    inputs = with_leaves(make_inputs(op))
    o, state = call(op, inputs, backend="chunk", return_state=True)
    for x in (o, state.S) if name != "q" else (o,):
        for loss in (x.sum(), x.square().sum()):
            # As in training with a gradient penalty.
            (grad,) = torch.autograd.grad(loss, inputs[name], create_graph=True)
            with pytest.raises(RuntimeError, match="double backward is not supported"):
                (loss + grad.square().sum()).backward(retain_graph=True)


def jvp(function, x, tangent):
    return torch.func.jvp(function, (x,), (tangent,))


def make_dual(function, x, tangent):
    with forward_ad.dual_level():
        return function(forward_ad.make_dual(x, tangent))


@pytest.mark.parametrize("push", [jvp, make_dual])
@each_op
def test_forward_mode_through_chunks_is_refused_and_not_dropped(op, push):
    inputs, state = make_inputs(op), make_state(op)
    for name, x in {**inputs, **floats(state)}.items():

        def function(x, name=name):
            given = {**inputs, name: x} if name in inputs else inputs
            start = state if name in inputs else STATES[op](**{**state.tensors(), name: x})
            return call(op, given, initial_state=start, backend="chunk")

        with pytest.raises(RuntimeError, match=r"forward-mode derivatives .* use backend='reference'"):
            push(function, x, torch.ones_like(x))


@pytest.mark.parametrize("transform", ["grad", "jacrev", "vmap"])
@each_op
def test_transforms_of_torch_func_take_the_loop(op, transform):
    inputs = make_inputs(op)
    name, x = next(iter(inputs.items()))

    def through(backend, x):
        return call(op, {**inputs, name: x}, backend=backend)

    with pytest.raises(RuntimeError, match=r"transforms of torch\.func .* use backend='reference'"):
        TRANSFORMS[transform](partial(through, "chunk"), x)
    wanted = TRANSFORMS[transform](partial(through, "reference"), x)
    assert torch.equal(TRANSFORMS[transform](partial(through, "auto"), x), wanted)
    if transform == "grad":
        leaf = x.clone().requires_grad_()
        torch.testing.assert_close(wanted, torch.autograd.grad(through("chunk", leaf).sum(), leaf)[0])


TRANSFORMS = {
    "grad": lambda function, x: torch.func.grad(lambda x: function(x).sum())(x),
    "jacrev": lambda function, x: torch.func.jacrev(lambda x: function(x).sum((1, 2, 3)))(x),
    "vmap": lambda function, x: torch.func.vmap(function)(torch.stack((x, 2 * x))),
}


@each_op
def test_chunks_can_stand_beside_forward_mode(op):
    o = call(op, make_inputs(op), backend="chunk")
    x = torch.ones(())
    primal, tangent = torch.func.jvp(lambda x: x * call(op, make_inputs(op), backend="chunk"), (x,), (x,))
    assert torch.equal(primal, o)
    assert torch.equal(tangent, o)


@pytest.mark.parametrize(("op", "backend"), LOOPS)
def test_the_other_forms_can_be_differentiated_twice_and_in_forward_mode(op, backend):
    inputs = with_leaves(make_inputs(op, batch=1, time=3, heads=1, dim=2, dim_v=2))

    def function(*tensors):
        return call(op, dict(zip(inputs, tensors, strict=True)), backend=backend)

    assert torch.autograd.gradgradcheck(function, tuple(inputs.values()))
    assert torch.autograd.gradcheck(function, tuple(inputs.values()), check_forward_ad=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("chunk_size", [None, 2])
def test_an_indefinite_penalty_is_an_error_chunk_by_chunk(chunk_size, dtype):
    inputs, state = make_inputs("vla", time=5, dtype=dtype), make_state("vla", dtype=dtype)
    for scale in (-100.0, -1e6):
        state.A[1, 2] = scale * torch.eye(D, dtype=dtype)
        with pytest.raises(torch.linalg.LinAlgError):
            call("vla", inputs, initial_state=state, backend="chunk", chunk_size=chunk_size)
