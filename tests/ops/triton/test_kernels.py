"""The kernels against the plain loop in float64: on a GPU where there is one, else in Triton's interpreter."""

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch

import varla
from tests.ops.cases import flat, randn, vla_inputs, vla_state, with_gradients
from tests.ops.triton.cases import DEVICE, SETTINGS, assert_fakes_agree, gpu, of_type, relative
from varla.ops.vla import VLASettings

pytest.importorskip("triton")
vla_triton = importlib.import_module("varla.ops.fused.triton.op").vla_triton

NO_REFRESH: dict[str, Any] = {"refresh_every": None}


def assert_agrees(
    inputs: list[torch.Tensor],
    state: varla.VLAState | None,
    dtype: torch.dtype,
    tolerance: float,
    cu_seqlens: torch.Tensor | None = None,
    known: Mapping[str, float] | None = None,
    **options: Any,
) -> None:
    """Outputs, final state and all gradients of the kernels within `tolerance` (by norm) of the loop in float64.

    `known`: bounds of those that are known to miss it, by name.
    """
    rounded = [x.to(dtype) for x in inputs]
    single = None if state is None else of_type(state, torch.float32)
    double = None if single is None else of_type(single, torch.float64)
    if cu_seqlens is not None:
        options["cu_seqlens"] = cu_seqlens
    wanted = with_gradients(varla.vla, [x.double() for x in rounded], double, backend="reference", **options)
    if cu_seqlens is not None:
        options["cu_seqlens"] = cu_seqlens.to(DEVICE)
    got = with_gradients(
        varla.vla,
        [x.to(DEVICE) for x in rounded],
        None if single is None else single.to(DEVICE),
        backend="triton",
        **options,
    )
    errors = {name: relative(got[name], wanted[name]) for name in wanted if wanted[name].abs().max() > 0}
    assert {got[name].dtype for name in ("o", *(f"d {i}" for i in range(4)))} == {dtype}
    assert [got[name].dtype for name in ("S", "A", "z")] == [torch.float32, torch.float32, torch.float64]
    bounds = dict.fromkeys(errors, tolerance) | dict(known or {})
    assert not {name: value for name, value in errors.items() if not value <= bounds[name]}


@pytest.mark.parametrize("options", [{}, NO_REFRESH], ids=["refresh", "no refresh"])
@pytest.mark.parametrize("T", [1, 15, 16, 17, 63, 64, 65, 150])
def test_every_length(T: int, options: dict[str, Any]) -> None:
    assert_agrees(vla_inputs(T, B=2, H=1, D=16, Dv=16), vla_state(2, 1, 16, 16), torch.float32, 5e-6, **options)


@pytest.mark.parametrize("options", [{}, NO_REFRESH], ids=["refresh", "no refresh"])
@pytest.mark.parametrize(("D", "Dv"), [(5, 4), (24, 40), (48, 16), (64, 80), (16, 130)])
def test_every_width(D: int, Dv: int, options: dict[str, Any]) -> None:
    assert_agrees(vla_inputs(70, B=1, H=2, D=D, Dv=Dv), vla_state(1, 2, D, Dv), torch.float32, 5e-6, **options)


@pytest.mark.parametrize("options", [*SETTINGS, {"gain": "projection", **NO_REFRESH}], ids=str)
def test_every_setting(options: dict[str, Any]) -> None:
    assert_agrees(vla_inputs(50, B=2, H=1, D=16, Dv=16), vla_state(2, 1, 16, 16), torch.float32, 1e-5, **options)


@pytest.mark.parametrize("options", [{}, NO_REFRESH], ids=["refresh", "no refresh"])
def test_several_spans(options: dict[str, Any]) -> None:
    """Longer than a span (256 tokens), so that A starts from an inverse, and its gradient from a sum."""
    assert_agrees(vla_inputs(530, B=1, H=1, D=16, Dv=16), vla_state(1, 1, 16, 16), torch.float32, 1e-5, **options)


@pytest.mark.parametrize("T", [1030, 1100])
def test_a_long_sequence_alone_with_refresh(T: int) -> None:
    """So long that its spans are walked at once, from what each of them does to any A."""
    assert_agrees(vla_inputs(T, B=1, H=1, D=16, Dv=16), vla_state(1, 1, 16, 16), torch.float32, 1e-5, refresh=0.05)


@pytest.mark.parametrize("options", [{}, NO_REFRESH], ids=["refresh", "no refresh"])
def test_packed(options: dict[str, Any]) -> None:
    lengths = [3, 0, 70, 1, 300, 64]
    cu_seqlens = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()])
    inputs = vla_inputs(sum(lengths), B=1, H=1, D=16, Dv=16)
    assert_agrees(inputs, vla_state(6, 1, 16, 16), torch.float32, 1e-5, cu_seqlens=cu_seqlens, **options)


@pytest.mark.parametrize("options", [{}, NO_REFRESH], ids=["refresh", "no refresh"])
def test_repeated_keys_and_directions(options: dict[str, Any]) -> None:
    q, k, v, u = vla_inputs(100, B=1, H=1, D=16, Dv=16)
    k, u = k[:, :1] + 0.1 * k, u[:, :1] + 0.01 * u
    assert_agrees([q, k, v, u], None, torch.float32, 2e-5, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("D", "Dv"), [(32, 32), (8, 8), (24, 40)])
def test_low_precision(D: int, Dv: int, dtype: torch.dtype) -> None:
    assert_agrees(vla_inputs(100, B=1, H=2, D=D, Dv=Dv), vla_state(1, 2, D, Dv), dtype, 1e-2)


def test_zero_directions_and_keys() -> None:
    q, k, v, u = vla_inputs(40, B=1, H=1, D=16, Dv=16)
    u[:, ::3] = 0
    assert_agrees([q, k, v, u], None, torch.float32, 1e-5)
    k[:, 1::4] = 0
    assert_agrees([q, k, v, u], None, torch.float32, 1e-5, feature_map="identity", normalizer=False)


def test_the_same_numbers_twice() -> None:
    inputs = [x.float().to(DEVICE) for x in vla_inputs(100, D=16, Dv=16)]
    first, second = (with_gradients(varla.vla, inputs, None, backend="triton") for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_nan_stays_in_its_row() -> None:
    inputs = [x.float().to(DEVICE) for x in vla_inputs(40, B=2, H=2, D=16, Dv=16)]
    clean = varla.vla(*inputs, backend="triton")
    inputs[1][1, 5, 0, 3] = float("nan")
    o = varla.vla(*inputs, backend="triton")
    assert torch.equal(o[0], clean[0])
    assert torch.equal(o[1, :, 1], clean[1, :, 1])
    assert o[1, 5:, 0].isnan().all()


def test_indefinite_A_shows() -> None:
    """What has no Cholesky factor comes out as NaN: A is not clamped into shape."""
    inputs = [x.float().to(DEVICE) for x in vla_inputs(20, B=1, H=1, D=16, Dv=16)]
    state = vla_state(1, 1, 16, 16)
    A = -1e3 * torch.eye(16, dtype=torch.float32).expand(1, 1, 16, 16)
    broken = varla.VLAState(state.S.float(), A, state.z, state.t).to(DEVICE)
    assert varla.vla(*inputs, initial_state=broken, backend="triton").isnan().any()


def test_empty() -> None:
    inputs = [x.float().to(DEVICE) for x in vla_inputs(0, D=16, Dv=16)]
    o, state = varla.vla(*inputs, backend="triton", return_state=True)
    assert o.shape == (2, 0, 2, 16)
    assert torch.equal(state.A, torch.eye(16, device=DEVICE).mul(10).expand(2, 2, 16, 16))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": torch.float64}, "float64"),
        ({"D": 130}, "D from 1 to 128, got 130"),
        ({"Dv": 257}, "Dv from 1 to 256, got 257"),
    ],
)
def test_what_the_kernels_cannot_take(change: dict[str, Any], message: str) -> None:
    dtype = change.pop("dtype", torch.float32)
    inputs = [x.to(DEVICE, dtype) for x in vla_inputs(5, **{"D": 16, "Dv": 16, **change})]
    with pytest.raises(RuntimeError, match=message):
        varla.vla(*inputs, backend="triton")


def test_chunk_size_is_refused() -> None:
    inputs = [x.float().to(DEVICE) for x in vla_inputs(5, D=16, Dv=16)]
    with pytest.raises(ValueError, match="has its own"):
        varla.vla(*inputs, backend="triton", chunk_size=32)


def test_double_backward_is_refused() -> None:
    inputs = [x.float().to(DEVICE).requires_grad_() for x in vla_inputs(20, D=16, Dv=16)]
    o = varla.vla(*inputs, backend="triton")
    (grad,) = torch.autograd.grad(o.sum(), inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="double backward is not supported by backend='triton'"):
        torch.autograd.grad(grad.sum(), inputs[:1])


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_the_operator_is_registered_right(packed: bool, gated: bool) -> None:
    """Schema, fake tensors (torch.compile) and autograd agree with what the operator does."""
    inputs = [x.float().to(DEVICE).requires_grad_() for x in vla_inputs(70, B=1 if packed else 2, D=16, Dv=16)]
    cu_seqlens = torch.tensor([0, 3, 70], device=DEVICE) if packed else None
    state = vla_state(2, 2, 16, 16)
    memory = [x.to(DEVICE).requires_grad_() for x in (state.S.float(), state.A.float(), state.z)]
    halves = VLASettings(penalty_scale=0.25).halves
    values = (1.0, -0.5, 0.3) if gated else ()
    gates = [torch.full_like(inputs[0][..., :1], value).requires_grad_() for value in values]
    arguments = flat(
        (*inputs, *(gates or [None] * 3), None, *memory, None, state.t.to(DEVICE), cu_seqlens, *halves, True)
    )
    checks = ("test_schema", "test_autograd_registration", "test_faketensor")
    found = torch.library.opcheck(vla_triton.registered, arguments, test_utils=checks)
    assert set(found.values()) == {"SUCCESS"}
    call = partial(torch.ops.varla.vla_triton, *arguments)
    assert_fakes_agree(call, [*inputs, *gates, *memory], "vla_triton", "vla_triton_backward")


def test_sizes_may_be_symbolic() -> None:
    def loss(*x: torch.Tensor) -> torch.Tensor:
        return varla.vla(*x, backend="triton").sin().sum()

    torch.compiler.reset()
    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    leaves = [torch.randn(2, 9, 2, 16, device=DEVICE, requires_grad=True) for _ in range(4)]
    got, wanted = (torch.autograd.grad(call(*leaves), leaves) for call in (compiled, loss))
    assert all(torch.equal(x, y) for x, y in zip(got, wanted, strict=True))


@pytest.mark.parametrize("options", [{}, NO_REFRESH], ids=["refresh", "no refresh"])
def test_only_the_symmetric_part_of_A_counts(options: dict[str, Any]) -> None:
    inputs, state = vla_inputs(300, B=1, H=1, D=16, Dv=16), vla_state(1, 1, 16, 16)
    state.A[..., 0, 3] += 0.2
    state.A[..., 3, 0] -= 0.2
    assert_agrees(inputs, state, torch.float32, 1e-5, **options)


def test_long_memory_of_A() -> None:
    """A's error does not grow along a sequence: 2000 tokens in calls of 400, the state passed on."""
    inputs = [x.float() for x in vla_inputs(2000, B=1, H=1, D=16, Dv=16)]
    _, wanted = varla.vla(*(x.double() for x in inputs), return_state=True, backend="chunk")
    state = None
    for part in zip(*(x.to(DEVICE).split(400, 1) for x in inputs), strict=True):
        _, state = varla.vla(*part, initial_state=state, return_state=True, backend="triton")
    assert state is not None
    assert relative(state.A, wanted.A) < 5e-6
    assert relative(state.S, wanted.S) < 5e-6
    assert torch.equal(state.A, state.A.mT)
    assert state.t.tolist() == [2000]


def test_inputs_in_any_memory_order() -> None:
    inputs = [randn(2, 2, 30, 16, seed=i, dtype=torch.float32).to(DEVICE).transpose(1, 2) for i in range(4)]
    strided = varla.vla(*inputs, backend="triton")
    assert torch.equal(strided, varla.vla(*(x.contiguous() for x in inputs), backend="triton"))


@pytest.mark.skipif(DEVICE == "cuda", reason="there products round to bfloat16, too, and hide what this is about")
def test_rounded_outputs_do_not_enter_gradients() -> None:
    """Nearly parallel keys: the gradient of q is a small difference of what the outputs would give it."""
    q, k, v, u = vla_inputs(33, B=1, H=1, D=16, Dv=16)
    k = k[:, :1] + 0.01 * k
    assert_agrees([q, k, v, u], None, torch.bfloat16, 1e-2, gain="projection")


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize(("D", "Dv"), [(8, 8), (24, 24), (16, 8), (64, 24), (32, 100), (32, 64), (64, 16)])
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_low_precision_at_widths_that_ptxas_gets_wrong(self, D: int, Dv: int, dtype: torch.dtype) -> None:
        """Version 12.8, where tiles are narrow: see MIN_ROW_BYTES in src/varla/ops/triton/launcher.py.

        du at 24 x 24 in bfloat16 is 1.01e-2 on an H200. It comes of a and E, kept in bfloat16: see RESULTS.md.
        """
        known = {"d 3": 1.1e-2} if (D, Dv, dtype) == (24, 24, torch.bfloat16) else None
        assert_agrees(vla_inputs(100, B=1, H=3, D=D, Dv=Dv), vla_state(1, 3, D, Dv), dtype, 1e-2, known=known)
