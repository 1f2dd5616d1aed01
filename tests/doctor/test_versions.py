"""The supported versions are those of pyproject.toml and constraints.txt; others are named."""

import re
import tomllib
from pathlib import Path

import pytest

from varla.doctor.versions import REQUIREMENTS, judge, judge_all, ptxas_remark, ptxas_version

ROOT = Path(__file__).parent.parent.parent
BY_NAME = {each.package: each for each in REQUIREMENTS}


def ranges():
    """(least, below) by package, as pyproject.toml has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for each in project["optional-dependencies"].values() for line in each)]
    lines.append(f"python{project['requires-python']}")
    for line in lines:
        if match := re.match(r"([a-z]+)>=([\d.]+)(?:,<([\d.]+))?", line):
            yield match[1], (match[2], match[3])


def test_ranges_are_those_of_the_project():
    found = dict(ranges())
    assert {name: (each.least, each.below) for name, each in BY_NAME.items()} == {name: found[name] for name in BY_NAME}


def test_the_newest_tested_are_those_of_the_constraints():
    text = (ROOT / "constraints.txt").read_text()
    assert BY_NAME["torch"].newest == ".".join(re.search(r"^torch==(\d+)\.(\d+)", text, re.MULTILINE).groups())
    below = int(re.search(r"^triton>=3\.6,<3\.(\d+)", text, re.MULTILINE)[1])
    assert BY_NAME["triton"].newest == f"3.{below - 1}"


@pytest.mark.parametrize(
    ("package", "version", "verdict"),
    [
        ("torch", "2.13.0+cpu", "fine"),
        ("torch", "2.11.0a0+git1234", "fine"),
        ("torch", "2.9.1", "WRONG"),
        ("torch", "2.14.0", "untested"),
        ("torch", "3.0", "untested"),
        ("python", "3.11.7", "fine"),
        ("python", "3.14.0", "WRONG"),
        ("python", "3.9.18", "WRONG"),
        ("triton", "3.6.0", "fine"),
        ("triton", "3.5.1", "WRONG"),
        ("triton", "3.10.0", "untested"),
        ("transformers", "5.22.2", "fine"),
        ("transformers", "5.23.0", "WRONG"),
        ("transformers", None, "not installed"),
        ("numpy", None, "WRONG"),
        ("numpy", "unknown", "WRONG"),
    ],
)
def test_verdicts(package, version, verdict):
    found = judge(BY_NAME[package], version)
    assert found.verdict == verdict
    assert (found.remark is None) == (verdict in ("fine", "not installed"))
    if found.remark:
        assert package in found.remark


def test_every_package_has_a_verdict():
    assert [each.package for each in judge_all({})] == list(BY_NAME)


@pytest.mark.parametrize(
    ("version", "capability", "known"),
    [("12.8", (9, 0), True), ("12.9", (9, 0), False), ("12.8", (8, 0), False), (None, (9, 0), False)],
)
def test_the_assembler_that_is_wrong_is_known_where_it_is(version, capability, known):
    assert (ptxas_remark(version, capability) is not None) == known


def test_the_version_of_the_assembler():
    pytest.importorskip("triton.backends.nvidia.compiler")
    assert re.fullmatch(r"\d+\.\d+", ptxas_version((9, 0)))
