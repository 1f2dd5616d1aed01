"""The checks cover every operator and backend, are fine here, and find what is wrong."""

import inspect

import pytest
import torch

import varla
from tests.doctor.cases import CHUNK, REFERENCE, gradient_off_by_a_percent, off_by_a_percent, raising
from varla.doctor import checks
from varla.doctor.checks import FINE, OPERATOR, PART, PLAIN, STEP, WRONG, Check, run
from varla.doctor.operators import OPERATORS
from varla.doctor.parts import PARTS

TRITON = pytest.mark.skipif(not varla.backends()["triton"].available, reason="needs Triton")


@pytest.fixture
def in_pytorch(monkeypatch):
    """As on a machine without a GPU and without the interpreter."""
    monkeypatch.setattr(checks, "devices", lambda: ["cpu"])
    monkeypatch.setattr(checks, "backends_on", lambda device: ["reference", "chunk"])


def on_a_gpu(monkeypatch):
    monkeypatch.setattr(checks, "devices", lambda: ["cuda:0"])
    monkeypatch.setattr(checks, "backends_on", lambda device: ["reference", "chunk", "triton"])
    return checks.plan()


def test_every_operator_of_the_package_is_checked():
    takes_backend = {
        name
        for name in varla.__all__
        if inspect.isfunction(getattr(varla, name)) and "backend" in inspect.signature(getattr(varla, name)).parameters
    }
    steps = {name for name in varla.__all__ if name.endswith("_step")}
    assert {each.function for each in OPERATORS.values()} == takes_backend - steps
    assert {f"{each.function}_step" for each in OPERATORS.values() if each.step} == steps


def test_every_gate_is_checked():
    given = {name: {word for each in OPERATORS.values() if each.function == name for word in each.inputs.split()}
             for name in ("vla", "directions", "memory", "delta_rule", "mesa")}  # fmt: skip
    gates = {"beta", "decay", "strength", "forget"}
    assert given["vla"] >= gates
    assert given["directions"] >= {"strength", "forget"}
    assert all(given[name] >= {"beta", "decay"} for name in ("memory", "delta_rule", "mesa"))


def test_every_backend_is_checked_in_every_dtype(in_pytorch):
    found = checks.plan()
    for name, operator in OPERATORS.items():
        for backend in ("reference", "chunk"):
            mine = [each for each in found if (each.kind, each.name, each.backend) == (OPERATOR, name, backend)]
            assert {each.dtype for each in mine} == {"float32", "bfloat16"}
            assert any(each.shape.lengths and each.shape.state for each in mine)
        assert bool(operator.step) == any(each.kind == STEP and each.name == name for each in found)
    assert not [each for each in found if each.kind == PART]
    assert len(found) == len(set(found))


def test_a_gpu_has_every_width_and_the_kernels_of_layers(monkeypatch):
    found = on_a_gpu(monkeypatch)
    kernels = [each for each in found if each.backend == "triton" and each.kind == OPERATOR]
    assert {each.name for each in kernels} == {name for name, each in OPERATORS.items() if "triton" in each.backends}
    for name in {each.name for each in kernels}:
        mine = [each for each in kernels if each.name == name]
        assert {each.shape.D for each in mine} == {16, 64, 128}
        assert {each.dtype for each in mine} == {"float32", "bfloat16"}
        assert any(each.shape.lengths and each.shape.state for each in mine)
    pairs = {(each.shape.D, each.dtype) for each in kernels if each.name == "vla"}
    assert len(pairs) == 6
    assert {(each.name, each.dtype) for each in found if each.kind == PART} == {
        (name, dtype) for name in PARTS for dtype in ("float32", "bfloat16")
    }
    assert {each.name for each in found if each.kind == STEP and each.backend == "triton"} == {
        "vla", "vla, gated", "vla, forget at the beat"
    }  # fmt: skip


def test_a_quick_plan_is_one_operator(in_pytorch):
    found = checks.plan(quick=True)
    assert {each.name for each in found} == {"vla"}
    assert sorted((each.backend, each.dtype) for each in found) == [
        ("chunk", "bfloat16"), ("chunk", "float32"), ("reference", "bfloat16"), ("reference", "float32")
    ]  # fmt: skip


@pytest.mark.parametrize("name", OPERATORS)
def test_all_is_fine_here(name, in_pytorch):
    """Packed sequences that go on, and one token at a time; other shapes for the fast form."""
    for check in checks.plan():
        if check.name == name and (check.kind == STEP or check.shape == PLAIN[1] or check.backend == "chunk"):
            outcome = run(check)
            assert outcome.verdict == FINE, outcome.complaint
            wanted = {"o", *OPERATORS[name].state.LAYOUT}
            if check.kind == OPERATOR:
                wanted |= {f"d {each}" for each in OPERATORS[name].inputs.split()}
                wanted |= {f"d {each}" for each in OPERATORS[name].state.LAYOUT if each != "t" and check.shape.state}
            assert set(outcome.errors) == wanted


@TRITON
@pytest.mark.parametrize("name", PARTS)
def test_kernels_of_layers_are_fine_here(name):
    device = "cuda:0" if torch.cuda.is_available() else "cpu"
    outcome = run(Check(device, PART, name, "triton", "float32"))
    assert outcome.verdict == FINE, outcome.complaint
    assert len(outcome.errors) > 1


@TRITON
@pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are not interpreted")
def test_interpreted_kernels_are_fine_here():
    assert checks.backends_on("cpu") == ["reference", "chunk", "triton"]
    mine = [each for each in checks.plan() if each.name == "vla" and each.backend == "triton"]
    assert {each.kind for each in mine} == {OPERATOR, STEP}
    for check in mine:
        assert run(check).verdict == FINE


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_all_is_fine_on_the_gpu():
    found = [run(check) for check in checks.plan() if check.device != "cpu"]
    assert [each.complaint for each in found if each.verdict == WRONG] == []


def test_outputs_that_are_off_by_a_percent_are_found(monkeypatch):
    off_by_a_percent(monkeypatch)
    outcome = run(CHUNK)
    assert outcome.verdict == WRONG
    assert outcome.worst == ("o", pytest.approx(1e-2, rel=1e-3))
    assert "delta_rule: chunk, float32 on cpu (3 packed H=2 D=8 Dv=6 state)" in outcome.complaint
    assert "over 1.0e-04: o 1.0e-02" in outcome.complaint
    assert run(REFERENCE).verdict == FINE


def test_a_gradient_that_is_off_by_a_percent_is_found(monkeypatch):
    gradient_off_by_a_percent(monkeypatch)
    outcome = run(CHUNK)
    assert outcome.verdict == WRONG
    assert [name for name, error in outcome.errors.items() if error > outcome.bound] == ["d k"]
    assert run(REFERENCE).verdict == FINE


def test_an_exception_is_a_finding(monkeypatch):
    raising(monkeypatch)
    outcome = run(CHUNK)
    assert outcome.verdict == WRONG
    assert outcome.message == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert run(REFERENCE).verdict == FINE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda o, state: (o * float("nan"), state), "o has NaN or infinity in 144 of 144 numbers"),
        (lambda o, state: (o[:, 1:], state), "o has shape"),
        (lambda o, state: (o.double(), state), "o is torch.float64 for inputs of torch.float32"),
        (lambda o, state: (o, varla.DeltaRuleState(state.S, state.t + 1)), r"t is [7, 18, 41], not [6, 17, 40]"),
    ],
    ids=["NaN", "shape", "dtype", "count"],
)
def test_what_has_no_error_is_named(change, message, monkeypatch):
    right = varla.delta_rule

    def wrong(*given, backend, **options):
        found = right(*given, backend=backend, **options)
        return change(*found) if backend == "chunk" else found

    monkeypatch.setattr(varla, "delta_rule", wrong)
    outcome = run(CHUNK)
    assert outcome.verdict == WRONG
    assert message in outcome.message


def test_an_outcome_without_errors_is_wrong():
    assert checks.Outcome(CHUNK).verdict == WRONG
