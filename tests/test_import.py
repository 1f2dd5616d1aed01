"""Importing varla is cheap and pulls in nothing heavy."""

import json
import subprocess
import sys

SCRIPT = """
import json, sys, time
import torch
before, start = set(sys.modules), time.perf_counter()
import varla
print(json.dumps({"seconds": time.perf_counter() - start, "new": sorted(set(sys.modules) - before)}))
"""


def import_varla():
    result = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


def test_import_adds_less_than_a_third_of_a_second_to_torch():
    assert min(import_varla()["seconds"] for _ in range(3)) < 0.3


def test_import_loads_no_compiler_and_no_framework():
    heavy = {"triton", "transformers", "matplotlib", "scipy", "torch._inductor", "torch._dynamo", "accelerate"}
    new = import_varla()["new"]
    assert "varla.ops.vla" in new
    assert not [name for name in new if name in heavy or name.split(".")[0] in heavy]


def test_public_names_are_the_documented_ones():
    import varla

    assert all(hasattr(varla, name) for name in varla.__all__)
    assert {"vla", "vla_step", "VLAState", "backends", "linear_attention", "delta_rule"} <= set(varla.__all__)
