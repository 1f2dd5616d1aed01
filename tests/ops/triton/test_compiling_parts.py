"""The kernels of what layers are made of beside their mechanisms, compiled for GPUs that need not be there."""

import json
import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


@pytest.mark.parametrize("arch", [80, 90])
def test_they_compile_without_spills(arch: int) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.ops.triton.compiling_parts", str(arch)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = {"norm_forward", "norm_backward", "rotate_rows", "gate_forward", "gate_backward"}
    assert {each["kernel"] for each in found} == wanted
    assert not [each for each in found if each["stack"] or each["unwritten"]]
