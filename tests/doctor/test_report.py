"""The report: the worst of every operator, backend and dtype, and a verdict that follows from all of them."""

import json
from dataclasses import replace

import pytest

from tests.doctor.cases import CHUNK, FINE, OFF
from varla.doctor.checks import Outcome
from varla.doctor.machine import examine
from varla.doctor.report import Report
from varla.doctor.versions import Version


@pytest.fixture(scope="module")
def machine():
    return replace(examine(), gpus=[], cuda=None)


def test_all_is_fine(machine):
    report = Report(machine, [FINE], 3.2)
    assert (report.verdict, report.wrong) == ("fine", [])
    assert report.summary()[-1] == "verdict: fine (1 checks in 3 s, all fine)"


def test_one_wrong_check_decides(machine):
    report = Report(machine, [FINE, OFF], 3.2)
    assert report.verdict == "WRONG"
    assert len(report.wrong) == 1
    *_, complaint, last = report.summary()
    assert complaint.startswith("WRONG: delta_rule: chunk, float32 on cpu")
    assert "d q 1.0e-02" in complaint
    assert last == "verdict: WRONG (2 checks in 3 s, 1 of them WRONG)"


def test_an_unsupported_version_decides(machine):
    old = Version("torch", "1.0", "2.11 or later", "WRONG", "torch 1.0 is not supported")
    report = Report(replace(machine, versions=[old]), [FINE], 3.2)
    assert report.verdict == "WRONG"
    assert "WRONG: torch 1.0 is not supported" in report.summary()


def test_a_line_is_the_worst_of_its_shapes(machine):
    worse = replace(FINE, check=CHUNK, errors={"o": 3e-6, "d v": 5e-5})
    failed = Outcome(CHUNK, message="ValueError: no")
    (right,) = Report(machine, [replace(FINE, check=CHUNK), worse], 1).lines()["cpu"]
    assert (right.worst, right.error, right.bound, right.verdict) == ("d v", 5e-5, 1e-4, "fine")
    (wrong,) = Report(machine, [worse, failed], 1).lines()["cpu"]
    assert (wrong.worst, wrong.verdict) == ("d v", "WRONG")
    (alone,) = Report(machine, [failed], 1).lines()["cpu"]
    assert (alone.worst, alone.error, alone.verdict) == (None, None, "WRONG")


def test_devices_are_apart(machine):
    there = replace(FINE, check=replace(FINE.check, device="cuda:0"))
    assert {device: len(lines) for device, lines in Report(machine, [FINE, there], 1).lines().items()} == {
        "cpu": 1, "cuda:0": 1
    }  # fmt: skip


def test_as_json(machine):
    failed = Outcome(CHUNK, message="ValueError: no")
    found = json.loads(json.dumps(Report(machine, [FINE, failed], 1).to_dict(), allow_nan=False))
    assert found["verdict"] == "WRONG"
    fine, wrong = found["checks"]
    assert (fine["worst"], fine["error"], fine["verdict"]) == ("d q", 2e-6, "fine")
    assert (wrong["worst"], wrong["error"], wrong["message"]) == (None, None, "ValueError: no")
