"""CONTRIBUTING.md names what is there: every part of the package, every module of the operators, and nothing else."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text()
LAYOUT = TEXT.split("## Layout")[1].split("## One evening")[0]
DRAWN = re.findall(r"[\w/]+\.py|\w+/", TEXT.split("### The operators")[1].split("### The way")[0])
NAMED = {part.removesuffix(".py") for name in [*re.findall(r"`([\w./]+)`", LAYOUT), *DRAWN] for part in name.split("/")}


OPS = "src/varla/ops"
FOLDERS = ["src/varla", OPS, *(f"{OPS}/{name}" for name in ("chunk", "triton", "directions", "memory", "fused"))]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_module_is_in_the_table(folder):
    found = {path.stem for path in (ROOT / folder).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found - {"__init__", "__main__"} <= NAMED


def test_what_the_text_names_is_there():
    for path in re.findall(r"`((?:src|tests|benchmarks|configs)/[\w./]*)`", TEXT):
        assert (ROOT / path).exists(), path
    sources = "\n".join(path.read_text() for path in ROOT.glob("src/varla/**/*.py"))
    modules = {path.stem for path in ROOT.glob("src/varla/**/*.py")}
    for name in re.findall(r"`([A-Za-z_]+)`", LAYOUT + TEXT.split("## What to touch")[1]):
        known = name in modules or re.search(rf"\b{name}\b", sources)
        assert known or name in ("NAME", "NAME_step"), name
