"""torch.compile, autocast and double backward."""

import pytest
import torch
import torch._dynamo.testing

import varla
from tests.ops.cases import assert_same, flat, randn, vla_inputs, vla_state, with_gradients


def linear(*x, **options):
    return varla.linear_attention(*x[:3], **options)


def delta(q, k, v, u, **options):
    return varla.delta_rule(q, k, v, u[..., 0].sigmoid(), **options)


@pytest.mark.parametrize("operator", [varla.vla, linear, delta])
def test_fullgraph_compile_agrees_forward_and_backward(operator):
    def model(*inputs, **options):
        o, state = operator(*inputs, **options)
        return 2 * o.sin(), state

    inputs = vla_inputs(67)
    wanted = with_gradients(model, inputs, None)
    torch.compiler.reset()
    assert_same(with_gradients(torch.compile(model, fullgraph=True), inputs, None), wanted)


def test_fullgraph_compile_with_state_and_packing():
    def model(q, k, v, u, state, cu_seqlens):
        o, state = varla.vla(q, k, v, u, initial_state=state, return_state=True, cu_seqlens=cu_seqlens)
        return o + 1, state

    lengths = [20, 41, 6]
    inputs, state = vla_inputs(sum(lengths), B=1), vla_state(B=3)
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    torch.compiler.reset()
    compiled = torch.compile(model, fullgraph=True)
    for cut in (cu_seqlens, torch.tensor([0, 1, 2, 67])):  # values may change without recompiling
        wanted, final = model(*inputs, state, cut)
        got, after = compiled(*inputs, state, cut)
        assert_same({"o": got, **after.tensors()}, {"o": wanted, **final.tensors()})
    with pytest.raises(ValueError, match="cu_seqlens must not fall"):
        compiled(*inputs, state, torch.tensor([0, 40, 20, 67]))


@pytest.mark.filterwarnings("error:Dynamo detected a call to a `functools.lru_cache`")
def test_compiling_traces_no_cached_function():
    """It would trace what is inside, at every call: a look for Triton and for a GPU."""
    torch._dynamo.utils.warn_once_cache.clear()
    torch.compiler.reset()
    q, k, v, u = vla_inputs(9)

    def model(q, k, v, u):
        o, _ = varla.vla_step(q[:, 0], k[:, 0], v[:, 0], u[:, 0])
        return varla.vla(q, k, v, u) + varla.memory(q, k, v, varla.directions(k, u)) + o[:, None]

    compiled = torch.compile(model, fullgraph=True, backend="eager")
    assert torch.equal(compiled(q, k, v, u), model(q, k, v, u))


def test_a_new_length_does_not_recompile_once_dynamic():
    torch.compiler.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda *x: varla.vla(*x) * 2, fullgraph=True, backend=counter)
    for T in (40, 50, 60, 70):
        inputs = vla_inputs(T)
        assert torch.equal(compiled(*inputs), varla.vla(*inputs) * 2)
    assert counter.frame_count <= 2  # the first length, then one graph for any


def test_the_operator_passes_torchs_own_checks():
    from varla.ops.fused.chunk import vla_chunk
    from varla.ops.vla import VLASettings

    state = vla_state()
    inputs = [x.requires_grad_() for x in vla_inputs(19)]
    operator = vla_chunk.forward
    arguments = (
        *inputs,
        None,
        None,
        None,
        state.S,
        state.A,
        state.z,
        state.t,
        None,
        *VLASettings(penalty_scale=0.5).halves,
        8,
        True,
    )
    assert set(torch.library.opcheck(operator.registered, flat(arguments)).values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_autocast_does_not_lower_the_precision_inside(backend):
    def under_autocast(*inputs, **options):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return varla.vla(*inputs, **options)

    inputs = [x.float() for x in vla_inputs(67, D=16, Dv=16)]
    wanted = with_gradients(varla.vla, inputs, None, backend=backend)
    assert_same(with_gradients(under_autocast, inputs, None, backend=backend), wanted, tolerance=0)


def test_autocast_lets_types_differ_and_the_widest_wins():
    q, k, v, u = (x.float() for x in vla_inputs(30))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = varla.vla(q.bfloat16(), k, v.bfloat16(), u)
        o_step, _ = varla.vla_step(q[:, 0].bfloat16(), k[:, 0], v[:, 0], u[:, 0])
    assert o.dtype == o_step.dtype == torch.float32
    with pytest.raises(TypeError, match="k must have the same dtype as q"):
        varla.vla(q.bfloat16(), k, v.bfloat16(), u)


def test_a_layer_under_autocast_trains():
    layer = torch.nn.Linear(8, 4 * 16)
    x = randn(2, 50, 8, seed=0, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = varla.vla(*layer(x).view(2, 50, 2, 32).chunk(4, -1))
        loss = o.square().mean()
    loss.backward()
    assert o.dtype == torch.bfloat16
    assert layer.weight.grad.isfinite().all()
    assert layer.weight.grad.abs().max() > 0


def test_double_backward_says_it_is_unsupported():
    inputs = [x.requires_grad_() for x in vla_inputs(30)]
    (grad,) = torch.autograd.grad(varla.vla(*inputs, backend="chunk").sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported"):
        grad.sum().backward()


def test_the_reference_can_be_differentiated_twice():
    inputs = [x.requires_grad_() for x in vla_inputs(5, B=1, H=1, D=3, Dv=2)]
    assert torch.autograd.gradgradcheck(lambda *x: varla.vla(*x, backend="reference"), inputs)
