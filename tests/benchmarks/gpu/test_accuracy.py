"""The accuracy section: what it checks, that its checks see what they are for, and how it judges."""

import math

import pytest
import torch

from benchmarks.gpu import accuracy


def checked(dtype, **errors):
    return {"case": f"{dtype} {errors}", "type": dtype, "errors": errors, "same bits": True, "NaN": 0}


def test_the_worst_of_each_type():
    rows = [checked("float32", o=1e-6, dq=1e-5), checked("float32", o=3e-6, dq=2e-6), checked("bfloat16", o=1e-3)]
    single, half, other = accuracy.worst(rows)
    assert (single["outputs"], single["gradients"], single["cases"]) == (3e-6, 1e-5, 2)
    assert single["worst"] == f"dq at {rows[0]['case']}"
    assert (half["gradients"], other["worst"]) == (None, None)


def test_nan_is_worse_than_any_error_and_meets_no_goal():
    rows = [checked("float32", o=1e-6, dq=1.0), checked("float32", o=1e-6, dq=math.nan)]
    assert math.isnan(accuracy.worst(rows)[0]["gradients"])
    goals = {goal["goal"]: goal["met"] for goal in accuracy.goals(rows)}
    assert goals["float32, outputs"]
    assert not goals["float32, gradients"]


def test_a_case_that_failed_meets_no_goal():
    rows = [checked("float32", o=1e-6, dq=1e-6), {"case": "x", "type": "float32", "error": "no luck"}]
    assert not any(goal["met"] for goal in accuracy.goals(rows))


def test_the_cases_are_many_and_different():
    cases = accuracy.cases(quick=False)
    assert len({str(case) for case in cases}) == len(cases) >= 30
    assert {case.D for case in cases} == {16, 32, 48, 64, 96, 128}
    assert max(case.T for case in cases) == 65536
    assert all(sum(case.lengths) == case.T for case in cases if case.lengths)
    assert {case.keys for case in cases} == {"random", "near", "same"}


def test_the_checks_see_an_error_other_bits_and_unwritten_memory(monkeypatch):
    pytest.importorskip("triton")
    case = accuracy.Case(1, 5, 1, 16)
    good = accuracy.check_case(case, "float32", 0)
    assert "error" not in good, good["error"]
    assert max(good["errors"].values()) < 2e-5
    assert good["same bits"]
    assert good["NaN"] == 0

    true = accuracy.results_of

    def wrong(case, given, backend, device, dtype=None):
        found = true(case, given, "chunk", device, dtype)
        if backend == "triton":
            found["o"] = found["o"] + torch.rand(1)
            found["dq"] = torch.empty_like(found["dq"])
        return found

    monkeypatch.setattr(accuracy, "results_of", wrong)
    bad = accuracy.check_case(case, "float32", 0)
    assert bad["errors"]["o"] > 2e-5
    assert not bad["same bits"]
    assert bad["NaN"] >= 5 * 16


def test_what_is_over_its_bound_stands_beside_what_the_inputs_allow(monkeypatch):
    case = accuracy.Case(1, 5, 1, 16)
    true = accuracy.results_of

    def coarse(case, given, backend, device, dtype=None):
        found = true(case, given, "chunk", device, dtype)
        return {name: 1.5 * x if backend == "triton" and name == "du" else x for name, x in found.items()}

    monkeypatch.setattr(accuracy, "results_of", coarse)
    row = accuracy.check_case(case, "bfloat16", 0)
    (line,) = accuracy.over([row, checked("float32", o=1e-6), checked("float16", o=1.0)])
    assert (line["type"], line["of"]) == ("bfloat16", "du")
    assert line["error"] == pytest.approx(0.5, rel=1e-2)
    assert 1e-4 < line["inputs moved"] < 1e-1  # half of 2^-7, as the gradient magnifies it
    assert line["chunk form"] < 1e-5
