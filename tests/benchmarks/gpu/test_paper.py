"""The paper's claims: the length from which softmax is slower, and the loop, on made-up times."""

import math

import pytest

from benchmarks.gpu import forms, paper, timing
from benchmarks.gpu.record import Findings, Options


@pytest.mark.parametrize(
    ("ours", "theirs", "tokens"),
    [
        ([4, 4, 4], [1, 4, 16], 2000),
        ([2, 2, 2], [1, 4, 16], 1000 * math.sqrt(2)),
        ([1, 1, 1], [2, 2, 2], 1000),
        ([3, 3, 3], [1, 1, 1], None),
        ([1, 3, 1], [2, 2, 2], 2000 * 2 ** (math.log(1.5) / math.log(3))),
    ],
)
def test_crossover(ours, theirs, tokens):
    found = paper.crossover([1000, 2000, 4000], ours, theirs)
    assert found == (None if tokens is None else pytest.approx(tokens))


def test_the_loop_is_held_against_the_kernels(fake, monkeypatch):
    monkeypatch.setattr(timing, "once", lambda call: 599.0)
    monkeypatch.setattr(forms.Work, "both", lambda self: None)
    found = Findings()
    paper.loop(found, Options(quick=True))
    (rows,) = found.tables.values()
    assert [row["speed-up"] for row in rows] == [299.5] * 6
    assert [row["form"] for row in rows if row["form"].startswith("sequential")] == [
        f"sequential, {x}" for x in forms.VARLA
    ]
    assert not any(goal["met"] for goal in found.goals)
