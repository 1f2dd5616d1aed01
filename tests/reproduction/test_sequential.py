"""The paper's kernel against the plain loop in float64: on a GPU where there is one, else in Triton's interpreter."""

from typing import Any

import pytest
import torch

import varla
from tests.ops.cases import randn, vla_inputs
from tests.ops.triton.cases import DEVICE, SETTINGS, assert_near, gpu, of_type, relative, state_on

pytest.importorskip("triton")

from reproduction.sequential import vla_sequential
from varla.ops.vla import VLASettings


def assert_agrees(inputs: list[torch.Tensor], state: varla.VLAState, tolerance: float = 1e-5, **options: Any) -> None:
    before = state.clone()
    got = vla_sequential(*inputs, state, VLASettings(**options))
    exact = of_type(state, torch.float64).to("cpu")
    double = [x.double().cpu() for x in inputs]
    wanted = varla.vla(*double, initial_state=exact, return_state=True, backend="reference", **options)
    assert got[0].dtype == inputs[0].dtype
    assert_near(got, wanted, tolerance)
    assert torch.equal(got[1].A, got[1].A.mT)
    assert all(torch.equal(x, y) for x, y in zip(state.tensors().values(), before.tensors().values(), strict=True))


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_every_setting(options: dict[str, Any]) -> None:
    assert_agrees([x.float().to(DEVICE) for x in vla_inputs(9, D=16, Dv=16)], state_on(DEVICE), **options)


@pytest.mark.parametrize(("D", "Dv"), [(1, 1), (5, 4), (24, 40), (48, 80), (128, 17)])
def test_every_width(D: int, Dv: int) -> None:
    inputs = [x.float().to(DEVICE) for x in vla_inputs(3, B=1, H=3, D=D, Dv=Dv)]
    assert_agrees(inputs, state_on(DEVICE, 1, 3, D, Dv), refresh_every=2)


def test_thirty_tokens() -> None:
    assert_agrees([x.float().to(DEVICE) for x in vla_inputs(30, B=2, H=1, D=24, Dv=8)], state_on(DEVICE, 2, 1, 24, 8))


def test_low_precision_inputs() -> None:
    inputs = [x.to(DEVICE, torch.bfloat16) for x in vla_inputs(5, D=16, Dv=16)]
    o, state = vla_sequential(*inputs, state_on(DEVICE), VLASettings())
    exact = of_type(state_on("cpu"), torch.float64)
    double = [x.double().cpu() for x in inputs]
    wanted, final = varla.vla(*double, initial_state=exact, return_state=True, backend="reference")
    assert o.dtype == torch.bfloat16
    assert relative(o, wanted) <= torch.finfo(torch.bfloat16).eps
    assert_near((state.z, state), (final.z, final), 1e-5)


def test_nan_stays_in_its_row_and_head() -> None:
    inputs = [x.float().to(DEVICE) for x in vla_inputs(5, D=16, Dv=16)]
    clean, _ = vla_sequential(*inputs, state_on(DEVICE), VLASettings())
    inputs[1][1, 2, 0, 3] = float("nan")
    o, _ = vla_sequential(*inputs, state_on(DEVICE), VLASettings())
    assert torch.equal(o[0], clean[0])
    assert torch.equal(o[1, :, 1], clean[1, :, 1])
    assert torch.equal(o[1, :2], clean[1, :2])
    assert o[1, 2:, 0].isnan().all()


def test_no_tokens() -> None:
    inputs, state = [x.float().to(DEVICE) for x in vla_inputs(0, D=16, Dv=16)], state_on(DEVICE)
    o, final = vla_sequential(*inputs, state, VLASettings())
    assert o.shape == (2, 0, 2, 16)
    assert_near((o, final), (o, state), 0)


def test_what_it_refuses() -> None:
    q, k, v, u = (x.float().to(DEVICE) for x in vla_inputs(3, D=16, Dv=16))
    with pytest.raises(ValueError, match="the sequential kernel has no backward, and k requires grad"):
        vla_sequential(q, k.clone().requires_grad_(), v, u, state_on(DEVICE), VLASettings())
    with pytest.raises(RuntimeError, match=r"cannot run here: .* use backend='chunk' for float64"):
        vla_sequential(*(x.double() for x in (q, k, v, u)), state_on(DEVICE), VLASettings())
    with pytest.raises(TypeError, match="state must be a VLAState"):
        vla_sequential(q, k, v, u, None, VLASettings())  # type: ignore[arg-type]


class TestOnTheGPU:
    pytestmark = gpu

    @pytest.mark.parametrize(("D", "Dv"), [(128, 128), (64, 64), (48, 80), (32, 256)])
    def test_a_long_sequence(self, D: int, Dv: int) -> None:
        inputs = [randn(4, 300, 4, d, seed=i).float().cuda() for i, d in enumerate((D, D, Dv, D))]
        assert_agrees(inputs, state_on("cuda", 4, 4, D, Dv))
