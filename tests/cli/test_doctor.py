"""`varla doctor`: a verdict that is right, an exit code that follows it, and tables that can be read."""

import json
import os
import subprocess
import sys

import pytest

import varla as package
from tests.cli.cases import varla
from tests.doctor.cases import CHUNK, REFERENCE, gradient_off_by_a_percent, off_by_a_percent, raising
from varla import doctor
from varla.doctor import machine


@pytest.fixture
def few(monkeypatch):
    """Two checks, in this process: faults that a test makes would not reach another."""
    for name in machine.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "plan", lambda quick: [REFERENCE, CHUNK])
    monkeypatch.setattr(doctor, "run_apart", doctor.run_here)


def test_all_is_fine(few):
    result = varla("doctor")
    assert result.exit_code == 0, result.output
    assert "verdict: fine (2 checks" in result.stdout
    for word in (
        package.__version__,
        "torch",
        "safetensors",
        "temporary folder",
        "delta_rule: chunk",
        *package.backends(),
    ):
        assert word in result.stdout
    assert "2 of 2 checks done" in result.stderr


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (off_by_a_percent, "relative errors over 1.0e-04: o 1.0e-02"),
        (gradient_off_by_a_percent, "relative errors over 1.0e-04: d k 1.0e-02"),
        (raising, "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ],
)
def test_what_is_wrong_is_named(few, fault, words, monkeypatch):
    fault(monkeypatch)
    result = varla("doctor")
    assert result.exit_code == 1
    assert f"WRONG: delta_rule: chunk, float32 on cpu (3 packed H=2 D=8 Dv=6 state): {words}" in result.stdout
    assert "verdict: WRONG (2 checks" in result.stdout
    assert "1 of them WRONG" in result.stdout
    rows = [line for line in result.stdout.splitlines() if line.startswith("│ delta_rule")]
    assert ["WRONG" in row for row in rows] == [False, True]


def test_json_is_all_of_stdout(few, monkeypatch):
    assert json.loads(varla("doctor", "--json").stdout)["verdict"] == "fine"
    raising(monkeypatch)
    result = varla("doctor", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["verdict"] == "WRONG"
    assert [each["verdict"] for each in found["checks"]] == ["fine", "WRONG"]
    assert found["machine"]["varla"] == package.__version__


@pytest.mark.parametrize("width", [60, 80])
def test_tables_fit_a_terminal(few, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    result = varla("doctor")
    drawn = [line for line in result.stdout.splitlines() if line.startswith(("│", "┃"))]
    assert drawn
    assert all(len(line) <= width for line in drawn)
    assert any("float32" in line or "delta_rule" in line for line in drawn)


def test_lines_of_every_operator_fit_60_columns(few, monkeypatch):
    from varla.doctor.checks import OPERATOR, Check, Outcome
    from varla.doctor.operators import OPERATORS

    monkeypatch.setenv("COLUMNS", "60")
    checks = [Check("cpu", OPERATOR, name, "reference", "bfloat16", CHUNK.shape) for name in OPERATORS]
    monkeypatch.setattr(doctor, "plan", lambda quick: checks)
    longest = {"d strength": 1.2345e-5}
    monkeypatch.setattr(doctor, "run_apart", lambda checks, done: [done(Outcome(each, longest)) for each in checks])
    numbers = varla("doctor").stdout.split("on cpu")[1]
    assert numbers.count("│ fine    │") == len(OPERATORS)
    assert all(len(line) <= 60 for line in numbers.splitlines() if line.startswith("│"))


def test_help_says_what_exit_codes_mean():
    text = " ".join(varla("doctor", "--help").stdout.split())
    assert "Exit code 0: all is well. 1: something is WRONG." in text


def test_as_a_process():
    """The real checks of the quick plan, in processes of their own."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "varla", "doctor", "--quick", "--json"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["verdict"] == "fine"
    assert {each["name"] for each in found["checks"]} == {"vla"}
    assert {each["backend"] for each in found["checks"]} >= {"reference", "chunk"}
