"""The kernels that go token by token compile for the GPUs they are meant for, and keep to their registers."""

import pytest

from tests.ops.triton.cases import compiled
from tests.ops.triton.test_compiling import SHARED

triton = pytest.importorskip("triton")


@pytest.mark.parametrize(
    ("arch", "dtype", "D", "DV", "refresh", "gain"),
    [
        (80, "bfloat16", 128, 128, 20, "unit"),
        (80, "float16", 5, 4, 20, "projection"),
        (90, "bfloat16", 128, 128, 20, "unit"),
        (90, "float32", 128, 256, 0, "raw"),
        (90, "float32", 48, 80, 20, "unit"),
        (90, "float32", 1, 1, 1, "unit"),  # a size of 1 is a constant to Triton, and not a tensor
    ],
)
def test_compiles_and_fits(arch: int, dtype: str, D: int, DV: int, refresh: int, gain: str) -> None:
    found = compiled("compiling_tokens", arch, dtype, D, DV, refresh, gain)
    each = ["recurrent_forward", "recurrent_backward"]  # a gate after the prediction, a strength, neither, both
    assert [x["kernel"] for x in found] == ["decode_token", "decode_token", "fade", "walk_tokens", *each * 4]
    plain, gated, fade, walk, *others = found
    for decode in (plain, gated):
        assert decode["reg"] * decode["num_warps"] * 32 * 2 <= 65536, decode  # two programs to a multiprocessor
        assert decode["stack"] <= 64, decode  # bytes a thread keeps outside its registers
    assert fade["stack"] <= (5500 if arch == 80 and D == 128 else 500), fade  # once a beat; a fault to mend
    assert fade["shared"] <= SHARED[arch], fade
    assert walk["stack"] <= 128, walk
    kept = 16 if triton.__version__.startswith("3.6.") else 0  # Triton 3.6 sets 16 bytes aside in one of them
    assert max(x["stack"] for x in others) <= kept, others
    assert max(x["shared"] for x in (plain, gated, walk, *others)) <= 16384
    assert not [x for x in found if x["faults"]]
