"""`vla_step` with its kernel against the plain loop in float64: on a GPU, else in Triton's interpreter."""

from typing import Any

import pytest
import torch

import varla
from tests.ops.cases import flat, randn, vla_inputs, vla_state
from tests.ops.triton.cases import DEVICE, SETTINGS, assert_near, gpu, of_type, relative, state_on

pytest.importorskip("triton")

from varla.ops.fused.triton.decode import decode_
from varla.ops.vla import VLASettings


def assert_agrees(inputs: list[torch.Tensor], state: varla.VLAState, tolerance: float = 1e-5, **options: Any) -> None:
    """Every token of `inputs`, one call each, in place, against the loop over all of them in float64."""
    exact = of_type(state, torch.float64).to("cpu")
    double = [x.double().cpu() for x in inputs]
    wanted = varla.vla(*double, initial_state=exact, return_state=True, backend="reference", **options)
    outputs = []
    for i in range(inputs[0].shape[1]):
        o, same = varla.vla_step(*(x[:, i] for x in inputs), state, inplace=True, backend="triton", **options)
        assert same is state
        outputs.append(o)
    assert outputs[0].dtype == inputs[0].dtype
    assert_near((torch.stack(outputs, 1), state), wanted, tolerance)


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_every_setting(options: dict[str, Any]) -> None:
    """Rows of the state are 14 tokens apart, so that their refreshes fall on different tokens."""
    inputs = [x.float().to(DEVICE) for x in vla_inputs(9, D=16, Dv=16)]
    assert_agrees(inputs, state_on(DEVICE), **options)


@pytest.mark.parametrize(("D", "Dv"), [(1, 1), (5, 4), (24, 40), (48, 80), (128, 17), (3, 256)])
def test_every_width(D: int, Dv: int) -> None:
    inputs = [x.float().to(DEVICE) for x in vla_inputs(3, B=1, H=3, D=D, Dv=Dv)]
    assert_agrees(inputs, state_on(DEVICE, 1, 3, D, Dv), refresh_every=2)


def test_thirty_tokens_are_those_of_vla() -> None:
    inputs = [x.float().to(DEVICE) for x in vla_inputs(30, B=2, H=1, D=24, Dv=8)]
    wanted = varla.vla(*inputs, return_state=True, backend="chunk")
    state, outputs = None, []
    for i in range(30):
        o, state = varla.vla_step(*(x[:, i] for x in inputs), state, backend="triton")
        outputs.append(o)
    assert state is not None
    assert_near((torch.stack(outputs, 1), state), wanted, 1e-5)
    assert torch.equal(state.A, state.A.mT)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs(dtype: torch.dtype) -> None:
    """Only the output is rounded: the state is as exact as with float32 inputs."""
    inputs = [x.to(DEVICE, dtype) for x in vla_inputs(4, D=16, Dv=16)]
    state = state_on(DEVICE)
    exact = of_type(state, torch.float64).to("cpu")
    for i in range(4):
        token = [x[:, i] for x in inputs]
        o, state = varla.vla_step(*token, state, backend="triton")
        wanted, exact = varla.vla_step(*(x.double().cpu() for x in token), exact)
        assert o.dtype == dtype
        assert relative(o, wanted) <= torch.finfo(dtype).eps
    assert_near((state.z, state), (exact.z, exact), 1e-5)


def test_each_row_has_its_own_beat() -> None:
    inputs = [x[:, 0].float().to(DEVICE) for x in vla_inputs(1, B=3, H=2, D=16, Dv=16)]
    state = state_on(DEVICE, B=3)
    state.t.copy_(torch.tensor([4, -6, 2**33]))  # of these, the tokens after the first two are multiples of five
    before = state.clone()
    plain, _ = varla.vla_step(*inputs, before.clone(), backend="triton", refresh_every=None, inplace=True)
    still, fixed = varla.vla_step(*inputs, before.clone(), backend="triton", refresh_every=None)
    _, got = varla.vla_step(*inputs, state, backend="triton", refresh_every=5, refresh=0.5, inplace=True)
    assert torch.equal(plain, still)
    assert got.t.tolist() == [5, -5, 2**33 + 1]
    eye = torch.eye(16, device=DEVICE).expand(2, 16, 16)
    assert (got.A - fixed.A)[:2].sub(0.5 * eye).abs().max() < 1e-6
    assert torch.equal(got.A[2], fixed.A[2])


@pytest.mark.parametrize("backend", ["reference", "triton"])
def test_in_place_is_in_place(backend: str) -> None:
    inputs = [x[:, 0].float().to(DEVICE) for x in vla_inputs(1, D=16, Dv=16)]
    state = state_on(DEVICE)
    before, places = state.clone(), [x.data_ptr() for x in state.tensors().values()]
    o, after = varla.vla_step(*inputs, state, backend=backend)
    assert all(torch.equal(x, y) for x, y in zip(state.tensors().values(), before.tensors().values(), strict=True))
    o_inplace, same = varla.vla_step(*inputs, state, backend=backend, inplace=True)
    assert same is state
    assert [x.data_ptr() for x in state.tensors().values()] == places
    assert torch.equal(o, o_inplace)
    assert all(torch.equal(x, y) for x, y in zip(state.tensors().values(), after.tensors().values(), strict=True))
    assert state.t.tolist() == (before.t + 1).tolist()


def test_in_place_from_nothing_begins_a_sequence() -> None:
    inputs = [x[:, 0].float().to(DEVICE) for x in vla_inputs(1, D=16, Dv=16)]
    o, state = varla.vla_step(*inputs, inplace=True, backend="triton")
    assert_near((o, state), varla.vla_step(*(x.double().cpu() for x in inputs)), 1e-5)


def test_in_place_in_float64_goes_through_the_loop() -> None:
    inputs = [x[:, 0].to(DEVICE) for x in vla_inputs(1)]
    state = vla_state().to(DEVICE)
    wanted = varla.vla_step(*inputs, state)
    o, same = varla.vla_step(*inputs, state, inplace=True)
    assert same is state
    assert_near((o, same), wanted, 0)


def test_nan_stays_in_its_row_and_head() -> None:
    inputs = [x[:, 0].float().to(DEVICE) for x in vla_inputs(1, D=16, Dv=16)]
    clean, clean_state = varla.vla_step(*inputs, state_on(DEVICE), backend="triton")
    inputs[1][1, 0, 3] = float("nan")
    o, state = varla.vla_step(*inputs, state_on(DEVICE), backend="triton")
    for got, wanted in ((o, clean), (state.S, clean_state.S), (state.A, clean_state.A)):
        assert torch.equal(got[0], wanted[0])
        assert torch.equal(got[1, 1], wanted[1, 1])
    assert o[1, 0].isnan().all()
    assert state.t.tolist() == clean_state.t.tolist()


def test_zero_directions_and_keys() -> None:
    q, k, v, u = (x.float().to(DEVICE) for x in vla_inputs(4, D=16, Dv=16))
    u[:, ::2] = 0
    assert_agrees([q, k, v, u], state_on(DEVICE))
    k[:, 1::2] = 0
    for gain in ("unit", "projection"):
        assert_agrees([q, k, v, u], state_on(DEVICE), feature_map="identity", normalizer=False, gain=gain)


def test_an_empty_batch() -> None:
    inputs = [torch.zeros(0, 2, 16, device=DEVICE)] * 4
    o, state = varla.vla_step(*inputs, backend="triton")
    assert o.shape == (0, 2, 16)
    assert state.S.shape == (0, 2, 16, 16)


def test_a_state_in_any_memory_order_unless_in_place() -> None:
    inputs = [x[:, 0].float().to(DEVICE) for x in vla_inputs(1, D=16, Dv=16)]
    state = state_on(DEVICE)
    turned = varla.VLAState(state.S.mT.contiguous().mT, state.A, state.z, state.t)
    o, after = varla.vla_step(*inputs, turned, backend="triton")
    assert_near((o, after), varla.vla_step(*inputs, state, backend="triton"), 0)
    for backend in ("reference", "triton"):
        with pytest.raises(ValueError, match=r"state.S must be contiguous to be updated in place, got strides \[512"):
            varla.vla_step(*inputs, turned, backend=backend, inplace=True)


def test_derivatives_go_through_the_loop() -> None:
    inputs = [x[:, 0].float().to(DEVICE).requires_grad_() for x in vla_inputs(1, D=16, Dv=16)]
    state = state_on(DEVICE)
    o, _ = varla.vla_step(*inputs, state)
    o.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in inputs)
    with pytest.raises(RuntimeError, match="backend='triton' cannot run here: the decode kernel has no derivatives"):
        varla.vla_step(*inputs, state, backend="triton")
    with torch.no_grad():
        assert relative(varla.vla_step(*inputs, state, backend="triton")[0], o.detach()) < 1e-5


@pytest.mark.parametrize("backend", ["auto", "reference", "triton"])
def test_in_place_refuses_what_autograd_would_miss(backend: str) -> None:
    inputs = [x[:, 0].float().to(DEVICE) for x in vla_inputs(1, D=16, Dv=16)]
    state = state_on(DEVICE)
    inputs[2].requires_grad_()
    with pytest.raises(ValueError, match=r"keeps nothing for a backward, and v requires grad; .*torch.no_grad\(\)"):
        varla.vla_step(*inputs, state, inplace=True, backend=backend)
    with torch.no_grad():
        varla.vla_step(*inputs, state, inplace=True, backend=backend)
    state.A.requires_grad_()
    with pytest.raises(ValueError, match=r"keeps nothing for a backward, and state.A requires grad"):
        varla.vla_step(*(x.detach() for x in inputs), state, inplace=True, backend=backend)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float64}, "float32; use backend='reference' for float64"),
        ({"D": 130}, "D from 1 to 128, got 130; use backend='reference'"),
        ({"Dv": 257}, "Dv from 1 to 256, got 257"),
    ],
)
def test_what_the_kernel_cannot_take(change: dict[str, Any], message: str) -> None:
    dtype = change.pop("dtype", torch.float32)
    inputs = [x[:, 0].to(DEVICE, dtype) for x in vla_inputs(1, B=1, H=1, **{"D": 16, "Dv": 16, **change})]
    with pytest.raises(RuntimeError, match=f"backend='triton' cannot run here: .*{message}"):
        varla.vla_step(*inputs, backend="triton")
    assert varla.vla_step(*inputs)[0].isfinite().all()


def test_unknown_arguments() -> None:
    inputs = [x[:, 0].float().to(DEVICE) for x in vla_inputs(1, D=16, Dv=16)]
    with pytest.raises(ValueError, match="backend must be one of 'auto', 'reference', 'triton', got 'chunk'"):
        varla.vla_step(*inputs, backend="chunk")
    with pytest.raises(TypeError, match="inplace must be"):
        varla.vla_step(*inputs, inplace="yes")  # type: ignore[arg-type]


def test_it_compiles_whole() -> None:
    inputs = [x[:, 0].float().to(DEVICE) for x in vla_inputs(1, D=16, Dv=16)]
    checks = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    arguments = flat((*inputs, None, None, None, *state_on(DEVICE).tensors().values(), *VLASettings().halves))
    assert set(torch.library.opcheck(decode_.registered, arguments, test_utils=checks).values()) == {"SUCCESS"}

    def step(state: varla.VLAState, *token: torch.Tensor) -> torch.Tensor:
        return 2 * varla.vla_step(*token, state, inplace=True, backend="triton")[0]

    torch.compiler.reset()
    state, eager = state_on(DEVICE), state_on(DEVICE)
    o = torch.compile(step, fullgraph=True, backend="aot_eager")(state, *inputs)
    assert_near((o, state), (step(eager, *inputs), eager), 0)


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize(("D", "Dv"), [(128, 128), (64, 64), (48, 80), (5, 4), (128, 256)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_a_large_batch(self, D: int, Dv: int, dtype: torch.dtype) -> None:
        """More programs than fit at once, over and over: a race on A, z or t would show."""
        inputs = [randn(64, 25, 16, d, seed=i).to("cuda", dtype) for i, d in enumerate((D, D, Dv, D))]
        state = state_on("cuda", 64, 16, D, Dv)
        exact = of_type(state, torch.float64)
        for i in range(25):
            token = [x[:, i] for x in inputs]
            o, _ = varla.vla_step(*token, state, inplace=True)
            wanted, exact = varla.vla_step(*(x.double() for x in token), exact)
            assert relative(o, wanted) <= max(1e-5, torch.finfo(dtype).eps)
        assert_near((o, state), (o, exact), 1e-5)
        assert torch.equal(state.A, state.A.mT)

    def test_the_same_bits_twice(self) -> None:
        inputs = [randn(64, 16, 128, seed=i).float().cuda() for i in range(4)]
        runs = [varla.vla_step(*inputs, state_on("cuda", 64, 16, 128, 128)) for _ in range(5)]
        for o, state in runs[1:]:
            assert_near((o, state), runs[0], 0)

    def test_auto_takes_the_kernel(self) -> None:
        inputs = [x[:, 0].float().cuda() for x in vla_inputs(1, D=16, Dv=16)]
        o, _ = varla.vla_step(*inputs, state_on("cuda"))
        assert torch.equal(o, varla.vla_step(*inputs, state_on("cuda"), backend="triton")[0])

    def test_a_cuda_graph_replays_the_recurrence(self) -> None:
        """Captured once, replayed for 25 tokens, over a beat: t is read on the GPU, not baked in."""
        inputs = [x.float().cuda() for x in vla_inputs(25, B=3, H=2, D=32, Dv=32)]
        start = of_type(vla_state(3, 2, 32, 32), torch.float32).to("cuda")
        token, state = [x[:, 0].clone() for x in inputs], start.clone()
        varla.vla_step(*token, start.clone(), inplace=True)  # compiled before the capture
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            o, _ = varla.vla_step(*token, state, inplace=True)
        for x, y in zip(state.tensors().values(), start.tensors().values(), strict=True):
            x.copy_(y)
        wanted = start.clone()
        for i in range(25):
            for x, y in zip(token, inputs, strict=True):
                x.copy_(y[:, i])
            graph.replay()
            o_wanted, wanted = varla.vla_step(*token, wanted)
            assert torch.equal(o, o_wanted)
        assert_near((o, state), (o, wanted), 0)
