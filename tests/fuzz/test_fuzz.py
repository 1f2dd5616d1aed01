"""A few seconds of every kind, with a fixed seed; `make fuzz` goes on. And the fuzzer finds what there is to find."""

import random

import pytest
import torch

import varla
from tests.fuzz.core import ACCEPTED, REFUSED, Find, refused, run
from tests.fuzz.damage import damaged, damaged_json, damaged_tensors
from tests.fuzz.kinds import KINDS

TRIES = {
    "state": 500, "session": 300, "forged": 60, "checkpoint": 300, "tokens": 80, "record": 30, "yaml": 100, "set": 400,
    "config": 80, "operator": 1000, "forms": 60,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_found(kind, tmp_path):
    found = run(kind, KINDS[kind](tmp_path), TRIES[kind])
    assert not found.finds, found
    assert found.outcomes.total() == TRIES[kind]
    assert found.outcomes[REFUSED] or kind == "tokens"  # damaged tokens are made again


def attempt_that(raises):
    def attempt(draw):
        if draw.random() < 0.5:
            raise raises
        return ACCEPTED

    return attempt


@pytest.mark.parametrize("error", [KeyError("a"), Find("other data"), MemoryError()], ids=str)
def test_a_find_is_counted_and_can_be_repeated(error):
    found = run("name", attempt_that(error), 50, seed=3)
    assert 10 < found.outcomes["found"] < 40
    assert found.outcomes[ACCEPTED] == 50 - found.outcomes["found"]
    (text,) = found.finds.values()
    first = int(text.partition("--first ")[2].split()[0])
    assert run("name", attempt_that(error), 1, seed=3, first=first).outcomes == {"found": 1}


def test_a_try_that_does_not_end_is_a_find(monkeypatch):
    monkeypatch.setattr("tests.fuzz.core.LIMIT", 0.05)

    def forever(draw):
        while True:
            pass

    assert "not done after" in str(run("name", forever, 1))


def error_of(function):
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function()
    return caught.value


def test_only_errors_of_ours_that_name_something_count_as_refusals():
    named = error_of(lambda: varla.VLAState.load("/"))
    assert refused(named, "/") == REFUSED
    with pytest.raises(Find, match="names no argument"):
        refused(named, "lambda0")
    by_chance = error_of(lambda: varla.vla(3, 4, 5, 6).no_such_name)
    assert refused(by_chance, "q") == REFUSED
    inside = error_of(lambda: random.Random().choice(3))
    with pytest.raises(TypeError):
        refused(inside, "int")


@pytest.mark.parametrize("damage", [damaged, damaged_json, damaged_tensors])
def test_damage_is_damage(damage, tmp_path):
    if damage is damaged_json:
        data = b'{"a": [1, "b", {"c": null}]}'
    else:
        varla.linear_attention(*torch.zeros(3, 1, 2, 1, 2), return_state=True)[1].save(tmp_path / "x")
        data = (tmp_path / "x").read_bytes()
    results = [damage(data, random.Random(i)) for i in range(200)]
    assert len(set(results)) > 100
    assert results == [damage(data, random.Random(i)) for i in range(200)]
