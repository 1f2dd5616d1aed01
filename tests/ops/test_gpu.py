"""The same results on a CUDA device. `pytest -m gpu` where there is one; skipped elsewhere."""

import pytest
import torch

import varla
from tests.ops.cases import assert_same, error, vla_inputs, vla_state, with_gradients
from tests.ops.test_precision import KEYS, hard_inputs, root_mean_square_error

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def on_cpu(results):
    return {name: x.cpu() for name, x in results.items()}


@pytest.mark.parametrize("backend", ["reference", "chunk"])
@pytest.mark.parametrize("options", [{}, {"gain": "projection"}, {"gain": "raw"}, {"refresh_every": None}])
def test_float64_agrees_with_the_cpu(backend, options):
    inputs, state = vla_inputs(67), vla_state()
    wanted = with_gradients(varla.vla, inputs, state, backend="reference", **options)
    got = with_gradients(varla.vla, [x.cuda() for x in inputs], state.to("cuda"), backend=backend, **options)
    assert_same(on_cpu(got), wanted)


@pytest.mark.parametrize("on", ["cpu", "cuda"])
def test_packed_with_offsets_on_either_device(on):
    lengths = [20, 0, 41, 1, 67]
    inputs, state = vla_inputs(sum(lengths), B=1), vla_state(B=len(lengths))
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    wanted = with_gradients(varla.vla, inputs, state, cu_seqlens=cu_seqlens, backend="reference")
    got = with_gradients(
        varla.vla, [x.cuda() for x in inputs], state.to("cuda"), cu_seqlens=cu_seqlens.to(on), backend="chunk"
    )
    assert_same(on_cpu(got), wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision_keeps_float32_states(dtype):
    inputs = [x.to("cuda", dtype) for x in vla_inputs(300, D=32, Dv=32)]
    o, state = varla.vla(*inputs, return_state=True, backend="chunk")
    wanted, exact = varla.vla(*(x.cpu().double() for x in inputs), return_state=True, backend="reference")
    assert o.dtype == dtype
    assert state.S.dtype == state.A.dtype == torch.float32
    assert state.z.dtype == torch.float64
    assert error(o.cpu(), wanted) <= max(1e-5, torch.finfo(dtype).eps)
    assert error(state.A.cpu(), exact.A) <= 1e-5


@pytest.mark.parametrize(("lambda0", "bound"), [(9.8e-4, 6e-2), (1e-2, 1e-2), (0.1, 8e-3), (1.0, 5e-2)])
@pytest.mark.parametrize("gain", ["raw", "unit", "projection"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_kernels_hold_small_penalties(dtype, gain, lambda0, bound):
    """u = k and 1000 random, repeated or nearly parallel keys. Small penalties are computed in float32."""
    q, k, v, _ = (x.to(dtype) for x in hard_inputs(1000, 64))
    options = {"lambda0": lambda0, "penalty_scale": 1.0, "refresh_every": None, "gain": gain}
    options |= {"feature_map": "identity", "normalizer": False}
    o = varla.vla(*(x.cuda() for x in (q, k, v, k)), backend="triton", **options)
    wanted = varla.vla(*(x.double() for x in (q, k, v, k)), backend="chunk", **options)
    assert o.dtype == dtype
    for row, kind in enumerate(KEYS):
        assert root_mean_square_error(o[row].cpu(), wanted[row]) <= bound, kind


def test_steps_continue_a_chunk():
    inputs = [x.cuda() for x in vla_inputs(50)]
    wanted = varla.vla(*inputs, backend="chunk")
    _, state = varla.vla(*(x[:, :30] for x in inputs), return_state=True, backend="chunk")
    for t in range(30, 50):
        o, state = varla.vla_step(*(x[:, t] for x in inputs), state)
        assert error(o.cpu(), wanted[:, t].cpu()) <= 1e-12


def test_compile_and_autocast():
    inputs = [x.float().cuda().requires_grad_() for x in vla_inputs(67)]
    wanted = varla.vla(*inputs, backend="chunk")
    compiled = torch.compile(lambda *x: varla.vla(*x, backend="chunk") * 1.0, fullgraph=True)
    assert torch.equal(compiled(*inputs), wanted)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(varla.vla(*inputs, backend="chunk"), wanted)


def test_devices_must_match():
    q, k, v, u = vla_inputs(5)
    with pytest.raises(ValueError, match="k must be on the same device as q"):
        varla.vla(q.cuda(), k, v, u)
    with pytest.raises(ValueError, match=r"initial_state.S must be on the inputs' device"):
        varla.vla(*(x.cuda() for x in (q, k, v, u)), initial_state=vla_state())
