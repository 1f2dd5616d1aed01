"""Importing varla is cheap and pulls in nothing heavy; torch comes with the first operator that is asked for."""

import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src"

SCRIPT = """
import json, sys, time
import torch
before, start = set(sys.modules), time.process_time()
import varla
varla.vla
varla.Session
print(json.dumps({"seconds": time.process_time() - start, "new": sorted(set(sys.modules) - before)}))
"""


MODULES = ("varla", "varla.cli", "varla.cli.main", "varla.runs.outcomes")
# One after the other: a module that loads torch is the first after which it is there.
LAZILY = f"""
import json, sys
from importlib import import_module
early = []
for module in {MODULES}:
    import_module(module)
    early.append("torch" in sys.modules)
import varla
varla.vla
print(json.dumps({{"early": early, "late": "torch" in sys.modules}}))
"""


def result_of(script):
    """What a new process prints: most of its time goes into loading torch, so the tests share results."""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def imported():
    return result_of(SCRIPT)


@pytest.fixture(scope="module")
def lazily():
    return result_of(LAZILY)


def test_import_adds_less_than_a_third_of_a_second_to_torch(imported):
    """Of processor time, the least of a few starts: what else runs on the machine only adds to it."""
    assert imported["seconds"] < 0.3 or any(result_of(SCRIPT)["seconds"] < 0.3 for _ in range(5))


def test_import_loads_no_compiler_and_no_framework(imported):
    heavy = {"triton", "transformers", "matplotlib", "scipy", "torch._inductor", "torch._dynamo", "accelerate"}
    new = imported["new"]
    assert "varla.ops.vla" in new
    assert not [name for name in new if name in heavy or name.split(".")[0] in heavy]


@pytest.mark.parametrize("module", MODULES)
def test_torch_is_loaded_only_when_it_is_needed(module, lazily):
    assert lazily["early"][MODULES.index(module)] is False
    assert lazily["late"] is True


def test_the_package_never_imports_what_stands_beside_it(request):
    beside = re.compile(r"^\s*(?:from|import) (?:reproduction|benchmarks|tests|examples)\b", re.MULTILINE)
    sources = list((request.config.rootpath / "src").rglob("*.py"))
    assert sources
    assert [path.name for path in sources if beside.search(path.read_text(encoding="utf-8"))] == []


def test_names_can_be_imported_and_listed_before_anything_is_loaded():
    script = (
        "import varla; assert 'vla_step' in dir(varla); from varla import *; print(vla.__module__, VLAState.__name__)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["varla.ops.vla", "VLAState"]


def test_public_names_are_the_documented_ones():
    import varla

    assert all(hasattr(varla, name) for name in varla.__all__)
    assert set(varla.__all__) <= set(dir(varla))
    operators = {name for name, value in vars(varla.ops).items() if name[0] != "_" and not inspect.ismodule(value)}
    assert operators == set(varla.__all__) - {"Session", "__version__"}
    with pytest.raises(AttributeError, match="module 'varla' has no attribute 'vlaa'"):
        _ = varla.vlaa
    assert {"vla", "vla_step", "VLAState", "backends", "linear_attention", "delta_rule"} <= set(varla.__all__)


def test_a_script_beside_the_clone_finds_the_package_not_the_clone(tmp_path):
    """Python takes a folder `varla` beside the script for an empty package, unless it finds a real one."""
    (tmp_path / "varla").symlink_to(SOURCE.parent)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", "import varla.cli; print(varla.vla.__module__, varla.cli.__file__)"]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["varla.ops.vla", str(SOURCE / "varla" / "cli" / "__init__.py")]
