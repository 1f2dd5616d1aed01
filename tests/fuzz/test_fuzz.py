"""A minute of all kinds, with a fixed seed; `make fuzz` goes on. And the fuzzer finds what there is to find."""

import functools
import random
import threading

import pytest
import torch

import varla
from tests.fuzz.compare import compare, compare_gradients
from tests.fuzz.core import ACCEPTED, REFUSED, Find, refused, run
from tests.fuzz.damage import damaged, damaged_json, damaged_tensors
from tests.fuzz.kinds import KINDS

TRIES = {
    "state": 8000, "session": 4800, "forged": 960, "checkpoint": 4800, "tokens": 1280, "record": 480, "yaml": 1600,
    "set": 6400, "config": 1280, "operator": 16_000, "forms": 960, "gradients": 640,
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


@pytest.mark.parametrize("limit", ["LIMIT", "WAIT"], ids=["works", "waits"])
def test_a_try_that_does_not_end_is_a_find(monkeypatch, limit):
    monkeypatch.setattr(f"tests.fuzz.core.{limit}", 0.05)

    def forever(draw):
        while True:
            if limit == "WAIT":
                threading.Event().wait(0.01)

    assert "not done after 0.05 seconds" in str(run("name", forever, 1))


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


def diverging(dtype=torch.float32):
    """S grows by a factor of 9 a token in the first head: gain "raw", and no penalty to speak of."""
    ones = torch.ones(1, 60, 2, 1, dtype=dtype)
    beta = torch.tensor([1.0, 0.1], dtype=dtype).expand(1, 60, 2)
    options = {"gain": "raw", "penalty_scale": 1e-30, "refresh_every": None, "normalizer": False, "return_state": True}
    return {
        "q": ones,
        "k": ones,
        "v": ones,
        "u": ones,
        "beta": beta,
        "chunk_size": 8,
        "feature_map": "identity",
        **options,
    }


def test_a_memory_that_diverges_overflows_in_every_form():
    """It is no find: the recurrence itself diverges, also in float64. The other head does not notice."""
    given = diverging()
    exact, _ = varla.vla(**diverging(torch.float64))
    compare("vla", {key: value for key, value in given.items() if key != "chunk_size"})
    compare("vla", given)
    growth = exact[0, 1:, 0, 0].diff() / exact[0, :-1, 0, 0].diff()
    assert torch.allclose(growth, torch.tensor(-9.0, dtype=torch.float64))
    o, _ = varla.vla(**given)
    first = int((exact[0, :, 0, 0].abs() > torch.finfo(torch.float32).max).int().argmax())
    assert 30 < first < 45
    assert not o[0, first:, 0].isfinite().any()
    assert o[0, : first // 8 * 8, 0].isfinite().all()
    assert o[0, :, 1].isfinite().all()


@pytest.mark.parametrize("wrong", ["zero", "too early", "too late", "other head", "wrong while it grows"])
def test_a_wrong_divergence_is_a_find(wrong, monkeypatch):
    real = varla.vla

    def broken(**given):
        o, state = real(**given)
        if given["backend"] == "chunk":
            match wrong:
                case "zero":
                    o = o.nan_to_num(0, 0, 0)
                case "too early":
                    o[:, :20, 0] = torch.nan
                case "too late":
                    o[:, -1] = 1.0
                case "other head":
                    o[:, -1, 1] = torch.nan
                case _:
                    o[:, 5, 0] *= 2
        return o, state

    monkeypatch.setattr(varla, "vla", broken)
    with pytest.raises(Find, match="vla is off by"):
        compare("vla", diverging())


def test_in_float64_rounding_may_do_what_the_last_place_of_the_inputs_does(monkeypatch, tmp_path):
    """Keys longer than sqrt(2) make S diverge. The last place of the inputs then changes the outputs by up to 8e-12."""
    assert not run("forms", KINDS["forms"](tmp_path), 1, first=125_300).finds
    real = varla.decayed_delta_rule

    @functools.wraps(real)
    def broken(**given):
        o, state = real(**given)
        return (o * (1 + 3e-9) if given["backend"] == "chunk" else o), state

    monkeypatch.setattr(varla, "decayed_delta_rule", broken)
    (found,) = run("forms", KINDS["forms"](tmp_path), 1, first=125_300).finds.values()
    assert "decayed_delta_rule is off by 3.0e-09 in o" in found


@pytest.mark.parametrize("wrong", ["q", "v", "initial_state"])
def test_a_wrong_gradient_is_a_find(wrong, monkeypatch):
    q, k, v, u = torch.randn(4, 1, 9, 1, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    _, state = varla.vla(q, k, v, u, return_state=True)
    given = {"q": q, "k": k, "v": v, "u": u, "initial_state": state, "return_state": True}
    compare_gradients("vla", given, torch.Generator())
    real = varla.vla

    def broken(**given):
        """The right value with a part of the gradient missing."""
        x = given[wrong]
        if given["backend"] == "chunk":
            given[wrong] = x.map(lost) if wrong == "initial_state" else lost(x)
        return real(**given)

    def lost(x):
        return x - 1e-6 * (x - x.detach()) if x.is_floating_point() else x

    monkeypatch.setattr(varla, "vla", broken)
    with pytest.raises(Find, match="the gradient of vla is off by"):
        compare_gradients("vla", given, torch.Generator())
