"""The section on mesa: what it is held against is its definition, and a peer that fails is a result."""

import pytest
import torch

from benchmarks.gpu import mesa
from benchmarks.gpu.record import Findings, Options


@pytest.mark.parametrize("kind", mesa.DECAYS)
def test_ours_is_the_solve_of_its_definition(kind, fake):
    x = mesa.inputs(1, 70, 2, 8, kind, torch.float32)
    found = mesa.errors("varla.mesa", x)
    assert found["finite"]
    assert found["error by norm"] <= 1e-5


def test_a_prior_that_does_not_decay_is_another_answer(fake):
    x = mesa.inputs(1, 70, 2, 8, "strong", torch.float32)
    assert not torch.allclose(mesa.solved(x, mesa.BEAT), mesa.solved(x, None), rtol=1e-2)
    x["decay"].zero_()
    assert torch.equal(mesa.solved(x, mesa.BEAT), mesa.solved(x, None))


def test_a_peer_that_fails_is_a_result(fake, monkeypatch):
    monkeypatch.setattr(mesa, "ERRORS", (1, 40, 1, 8))
    monkeypatch.setattr(mesa, "TIMES", (1, 40, 1, 8))
    found = Findings()
    mesa.run(found, Options(quick=True, peers="nowhere"))
    table, times = found.tables.values()
    assert {row["form"]: "error" in row for row in table} == {"varla.mesa": False, "MesaNet": True}
    assert [row["form"] for row in times] == ["varla.mesa"]
    assert times[0]["finite gradients"]
    assert found.goals[0]["met"]
    assert "MesaNet" in found.notes[0]
