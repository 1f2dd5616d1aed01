"""The section on gates, on made-up times: every form is called, and the ratios are judged."""

import pytest

from benchmarks.gpu import gated
from benchmarks.gpu.record import Findings, Options


def test_every_form_and_every_step_is_timed(fake, monkeypatch):
    monkeypatch.setattr(gated.train_step, "step", lambda settings, device: lambda: None)
    found = Findings()
    gated.run(found, Options())
    operators, steps = found.tables.values()
    assert [row["form"] for row in operators] == 2 * list(gated.FORMS)
    assert [row["mechanism"] for row in steps] == list(gated.STEPS)
    assert len(found.goals) == 3 * 2 * 2 + 2
    assert all(goal["met"] for goal in found.goals)


@pytest.mark.parametrize("form", gated.FORMS)
def test_gates_are_within_their_ranges_and_get_gradients(form, fake):
    x = gated.work(form, 1, 9, 1, 16, dtype=gated.torch.float32)
    assert all(grad.isfinite().all() for grad in x.both())
