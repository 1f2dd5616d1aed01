"""Checks run in processes of their own: what dies or hangs is named, and the others still run."""

import os
import signal
import time
from dataclasses import replace

import pytest

from tests.doctor.cases import CHUNK, FINE, REFERENCE, SMALL
from tests.ranks import CONTEXT
from varla.doctor import runner
from varla.doctor.checks import Outcome


def collected(checks, **options):
    found = []
    runner.run_apart(checks, found.append, **options)
    return {each.check: each for each in found}


@pytest.fixture
def forked(monkeypatch):
    """Processes that are forked from one that has imported PyTorch, where what they compute does not matter."""
    monkeypatch.setattr(runner, "get_context", lambda _: CONTEXT)


def test_outcomes_come_from_other_processes():
    checks = [REFERENCE, CHUNK, replace(CHUNK, name="no such operator")]
    found = collected(checks)
    assert [found[each].verdict for each in checks] == ["fine", "fine", "WRONG"]
    assert found[checks[2]].message == "KeyError: 'no such operator'"


def serve_or_die(pipe):
    """Dies for bfloat16; says that the GPU is lost after every other check."""
    while True:
        check = pipe.recv()
        if check.dtype == "bfloat16":
            os.kill(os.getpid(), signal.SIGSEGV)
        pipe.send((Outcome(check, {"o": float(os.getpid())}), True))


def test_a_process_that_dies_is_named_and_replaced(monkeypatch, forked):
    monkeypatch.setattr(runner, "serve", serve_or_die)
    checks = [CHUNK, replace(CHUNK, dtype="bfloat16"), replace(CHUNK, shape=replace(SMALL, H=3))]
    found = collected(checks)
    assert found[checks[1]].message == "its process died (SIGSEGV)"
    assert found[checks[0]].message is found[checks[2]].message is None


def test_a_lost_gpu_needs_a_new_process(monkeypatch, forked):
    monkeypatch.setattr(runner, "serve", serve_or_die)
    found = collected([CHUNK, REFERENCE])
    assert len({each.errors["o"] for each in found.values()}) == 2


def serve_nothing(pipe):
    time.sleep(600)


def test_a_check_that_never_ends_is_named(monkeypatch, forked):
    monkeypatch.setattr(runner, "serve", serve_nothing)
    found = collected([CHUNK, REFERENCE], limit=0.2)
    assert {each.message for each in found.values()} == {"no result after 0.2 s"}


def test_in_this_process(monkeypatch):
    monkeypatch.setattr(runner, "run", lambda check: replace(FINE, check=check))
    found = []
    runner.run_here([CHUNK, REFERENCE], found.append)
    assert [each.check for each in found] == [CHUNK, REFERENCE]
