"""Linear attention and the delta rule in chunks compile for the GPUs they are meant for."""

import pytest

from tests.ops.triton.cases import compiled
from tests.ops.triton.test_compiling import SHARED

pytest.importorskip("triton")

SHARED_BY_BOTH = {"prepare", "scan", "read", "scan_backward", "unread", "running_sum", "finish"}


# Bytes a thread may keep outside its registers, and the kernels that keep more, which are faults to mend.
@pytest.mark.parametrize(
    ("arch", "dtype", "D", "error", "spilled", "known", "decayed"),
    [
        (80, "bfloat16", 128, False, 250, {"read": 504}, False),
        (90, "bfloat16", 64, True, 200, {}, False),
        (90, "bfloat16", 128, False, 200, {}, False),
        (90, "float32", 64, True, 500, {"prepare": 2304, "finish": 656}, False),
        (90, "bfloat16", 64, True, 200, {"prepare": 264}, True),
        (90, "bfloat16", 128, True, 200, {"unread": 432}, True),
    ],
)
def test_compiles_and_fits(
    arch: int, dtype: str, D: int, error: bool, spilled: int, known: dict[str, int], decayed: bool
) -> None:
    found = compiled("compiling_chunks", arch, dtype, D, int(error), *(["decay"] if decayed else []))
    wanted = SHARED_BY_BOTH | ({"turn"} if error else set())
    assert {x["kernel"] for x in found} == (wanted - {"running_sum"} | {"decayed_sum"} if decayed else wanted)
    for kernel in found:
        assert not kernel["faults"], kernel
        assert kernel["shared"] <= SHARED[arch], kernel
        assert kernel["stack"] <= known.get(kernel["kernel"], spilled), kernel
