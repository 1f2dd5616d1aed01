"""The crossover by hand, and what is said of times that were never taken."""

import math

import pytest
import torch

from reproduction.items import latency
from reproduction.items.latency import HEADS, ITEM, LARGE, MECHANISMS, crossover
from reproduction.items.timing import FLASH, NO_REFRESH
from reproduction.records import Results
from reproduction.runs import FULL, QUICK
from reproduction.verdicts import CONDITIONAL, NOT_REPRODUCED, NOT_RUN, REPRODUCED
from tests.reproduction.fabricate import judged, results


def test_the_crossover_is_where_power_laws_cross():
    # 1e-6 T^2 and 1e-2 T cross at 10 000
    lengths = (1000, 4000, 16_000, 64_000)
    assert crossover({T: 1e-6 * T * T for T in lengths}, {T: 1e-2 * T for T in lengths}) == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("softmax", "vla", "found"),
    [
        ({1: 2.0, 2: 2.0}, {1: 1.0, 2: 1.0}, 1.0),
        ({1: 1.0, 2: 1.0}, {1: 2.0, 2: 2.0}, math.inf),
        ({1: 2.0, 4: 1.0, 16: 4.0}, {1: 1.0, 4: 4.0, 16: 1.0}, 8.0),  # the last of several
        ({}, {1: 1.0}, None),
    ],
)
def test_the_crossovers_edges(softmax, vla, found):
    assert crossover(softmax, vla) == (found if found is None else pytest.approx(found))


def times(preset, heads, dtypes, device, seconds):
    lengths = latency.lengths(preset)
    return [
        (
            latency.time_run(preset, T, heads, dtype),
            {"device": device, "name": device, "seconds": {name: seconds(name, T) for name in MECHANISMS}},
        )
        for T in lengths
        for dtype in dtypes
    ]


def quadratic(name, T):
    return 1e-8 * T * T if name == "softmax" else 2e-4 * T


@pytest.mark.parametrize(
    ("device", "scale", "verdict"),
    [("cuda", 1.0, REPRODUCED), ("cuda", 0.25, NOT_REPRODUCED), ("cpu", 1.0, NOT_RUN)],
)
def test_the_crossover_is_judged_on_a_gpu_alone(device, scale, verdict):
    def seconds(name, T):
        return quadratic(name, T) * (scale if name == "softmax" else 1)

    found = results(times(FULL, LARGE, ("float32", "bfloat16"), device, seconds))
    claim = next(each for each in ITEM.claims if each.id == "P15-crossover")
    judged_ = claim.judge(found, FULL)
    assert judged_.verdict == verdict
    if scale == 1.0 and device == "cuda":
        assert judged_.ours == pytest.approx(20_000)


@pytest.mark.parametrize(("power", "verdict"), [(1.0, REPRODUCED), (1.5, NOT_REPRODUCED)])
def test_linear_time_is_a_slope(power, verdict):
    found = results(times(QUICK, HEADS, ("float32",), "cpu", lambda name, T: 1e-6 * T**power))
    assert judged(ITEM, "P15-linear-time", found).verdict == verdict
    assert judged(ITEM, "P15-linear-time", found).ours == pytest.approx(power)


@pytest.mark.parametrize(("fastest", "verdict"), [("softmax", REPRODUCED), ("vla", NOT_REPRODUCED)])
def test_the_fastest_at_128_is_found(fastest, verdict):
    found = results(times(QUICK, HEADS, ("float32",), "cpu", lambda name, T: 1.0 if name == fastest else 2.0))
    assert judged(ITEM, "P15-short", found).verdict == verdict


@pytest.mark.parametrize(
    ("preset", "device", "loop", "verdict"),
    [
        (FULL, "cuda", 15.0, REPRODUCED),
        (QUICK, "cuda", 15.0, CONDITIONAL),
        (FULL, "cuda", 13.0, NOT_REPRODUCED),
    ],
)
def test_the_speed_up_is_reproduced_where_the_paper_took_it(preset, device, loop, verdict):
    value = {"device": device, "name": device, "seconds": {"loop": loop, "best": 1.0}}
    claim = next(each for each in ITEM.claims if each.id == "P15-speedup")
    found = claim.judge(results([(latency.speed_run(preset), value)]), preset)
    assert found.verdict == verdict
    assert found.ours == loop


def test_a_crossover_beyond_what_was_timed_is_not_judged():
    found = results(times(QUICK, LARGE, ("float32",), "cuda", quadratic))
    assert judged(ITEM, "P15-crossover", found).verdict == NOT_RUN
    assert "longer sequences" in judged(ITEM, "P15-crossover", found).note


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_full_presets_times_are_refused_without_a_gpu():
    with pytest.raises(RuntimeError, match="GPU"):
        latency.time_run(FULL, 128, HEADS).call()
    with pytest.raises(RuntimeError, match="GPU"):
        latency.speed_run(FULL).call()


def test_times_are_taken_of_all_four():
    found = latency.latencies(8, 1, 4, 1)
    assert set(found["seconds"]) == set(MECHANISMS)
    assert set(latency.speedup(8, 1, 4, 1)["seconds"]) == {"loop", "best"}


def test_without_runs_nothing_is_said():
    assert {each.judge(Results(), QUICK).verdict for each in ITEM.claims} == {NOT_RUN}


def test_other_forms_are_named_beside_the_crossover():
    """VLA overtakes at half the length without refresh, and against a kernel that takes twice as long."""
    times = {T: {"softmax": T * T, "vla": 8000.0 * T} for T in latency.lengths(FULL)}
    found = [(run, times[T]) for T, run in latency.large(FULL, "bfloat16").items()]
    found += [(run, {FLASH: 2.0 * T * T, NO_REFRESH: 4000.0 * T}) for T, run in latency.other(FULL).items()]
    value = {"device": "cuda", "name": "a GPU"}
    said = latency.by_form(results((run, {**value, "seconds": seconds}) for run, seconds in found), FULL)
    assert "refresh every 20 tokens against PyTorch's choice of kernel 8000" in said
    assert "refresh every 20 tokens against the flash kernel 4000" in said
    assert "no refresh against PyTorch's choice of kernel 4000" in said
    assert "no refresh against the flash kernel 2000" in said
    assert not latency.other(QUICK)
    assert {run.key for run in latency.runs(FULL)} >= {run.key for run in latency.other(FULL).values()}
