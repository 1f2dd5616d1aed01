"""The kernels of what layers are made of beside their mechanisms, compiled for GPUs that need not be there."""

import pytest

from tests.ops.triton.cases import compiled

pytest.importorskip("triton")


@pytest.mark.parametrize("arch", [80, 90])
def test_they_compile_without_spills(arch: int) -> None:
    found = compiled("compiling_parts", arch)
    wanted = {"norm_forward", "norm_backward", "rotate_rows", "gate_forward", "gate_backward"}
    assert {each["kernel"] for each in found} == wanted
    assert not [each for each in found if each["stack"] or each["faults"]]


def test_what_is_recorded_is_what_the_compiler_makes() -> None:
    assert compiled("compiling_parts", 90, "fresh") == compiled("compiling_parts", 90)
