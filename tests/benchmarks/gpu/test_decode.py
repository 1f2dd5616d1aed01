"""Decoding, where there is nothing to measure."""

from benchmarks.gpu import decode
from benchmarks.gpu.record import Findings, Options


def test_decode_says_why_it_is_not_measured(monkeypatch):
    monkeypatch.setattr("varla.vla_step", lambda q, k, v, u, state: None)
    found = Findings()
    decode.run(found, Options())
    assert not found.tables
    assert found.notes == ["not measured: varla.vla_step has no `inplace`"]
