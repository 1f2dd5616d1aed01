"""Triton's interpreter gives the same bits as before `tests.interpreter` made it faster."""

import pytest
import torch

import varla
from tests.ops.cases import vla_inputs, with_gradients
from varla.ops.backends import triton_interpreted

triton = pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not triton_interpreted(), reason="kernels run on a GPU")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_same_bits(dtype: torch.dtype) -> None:
    from tests.interpreter import VERSION, patch, quicken

    if not triton.__version__.startswith(VERSION):
        pytest.skip(f"only the interpreter of Triton {VERSION}x is made faster")
    inputs = [x.to(dtype) for x in vla_inputs(66, B=1, H=1, D=5, Dv=16)]
    fast = with_gradients(varla.vla, inputs, None, backend="triton")
    patch.undo()
    try:
        slow = with_gradients(varla.vla, inputs, None, backend="triton")
    finally:
        quicken()
    assert fast.keys() == slow.keys()
    for name, x in fast.items():
        assert torch.equal(x, slow[name]), name
