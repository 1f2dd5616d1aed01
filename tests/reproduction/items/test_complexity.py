"""State sizes and the cache, by hand; constant factors, by fabricated times."""

import pytest
import torch

from reproduction.items import complexity
from reproduction.items.complexity import ITEM, LENGTHS, MECHANISMS
from reproduction.records import Results
from reproduction.runs import QUICK
from reproduction.verdicts import FALSE, NOT_REPRODUCED, NOT_RUN, REPRODUCED
from tests.reproduction.fabricate import judged, measures, results


def test_the_cache_by_hand():
    # keys and values, 100 000 tokens, 4096 numbers, 32 layers, 2 bytes
    assert complexity.cache_bytes(100_000, 4096, 32, 2) == 52_428_800_000
    assert complexity.cache_bytes(3, 2, 1, 4) == 48


def test_state_bytes_by_hand():
    # four heads of 32: S and A of 32 x 32 in float32, z of 32 in float64, and the count of tokens
    assert complexity.state_bytes("vla", 128, 4, 1)["bytes"] == [4 * (2 * 32 * 32 * 4 + 32 * 8) + 8] * len(LENGTHS)
    softmax = complexity.state_bytes("softmax", 128, 4, 2)["bytes"]
    assert softmax[1] > 9 * softmax[0]


def sizes(growing):
    return results(
        (
            complexity.size_run(name),
            {"T": LENGTHS, "bytes": list(LENGTHS) if name == "softmax" or growing else [1] * len(LENGTHS)},
        )
        for name in MECHANISMS
    )


@pytest.mark.parametrize(("growing", "verdict"), [(False, REPRODUCED), (True, FALSE)])
def test_states_that_grow_are_noticed(growing, verdict):
    assert judged(ITEM, "P16-state", sizes(growing)).verdict == verdict


@pytest.mark.parametrize(("half", "verdict"), [(52_400_000_000, REPRODUCED), (40_000_000_000, NOT_REPRODUCED)])
def test_the_cache_is_held_against_the_footnote(half, verdict):
    found = results(
        [
            (complexity.cache_run("fp16"), half),
            (complexity.cache_run("fp32"), 2 * half),
            (complexity.LARGE_VLA, {"T": LENGTHS, "bytes": [1] * len(LENGTHS)}),
        ]
    )
    assert judged(ITEM, "P16-cache", found).verdict == verdict


@pytest.mark.parametrize(
    ("vla", "table", "text"),
    [(3.5, REPRODUCED, REPRODUCED), (5.5, REPRODUCED, NOT_REPRODUCED), (9.0, NOT_REPRODUCED, NOT_REPRODUCED)],
)
def test_factors_are_over_linear_attention(vla, table, text):
    value = {"device": "cpu", "name": "CPU", "seconds": {"linear": 0.01, "deltanet-paper": 0.02, "vla": 0.01 * vla}}
    found = results((run, value) for run in measures(complexity.runs(QUICK)) if run.timed)
    assert judged(ITEM, "P16-factor-vla", found).verdict == table
    assert judged(ITEM, "P16-factor-vla-text", found).verdict == text
    assert judged(ITEM, "P16-factor-deltanet-paper", found).ours == pytest.approx(2)


def test_times_are_taken_of_all_three():
    found = complexity.factors(4, 1, 4, "reference", 1)
    assert set(found["seconds"]) == {"linear", "deltanet-paper", "vla"}
    assert min(found["seconds"].values()) > 0


def test_without_runs_nothing_is_said():
    assert {each.judge(Results(), QUICK).verdict for each in ITEM.claims} == {NOT_RUN}


def test_operators_of_a_token_are_counted_without_views():
    found = complexity.operators(3, 1, 4)
    assert found == complexity.operators(5, 2, 8)  # of the loop, not of its size
    assert 0 < found["linear"] < found["deltanet-paper"] < found["vla"]
    with complexity.Counter() as counter:
        (torch.ones(3, 3).view(9).unsqueeze(0) + 1).t()
    assert counter.count == 2  # ones and the sum
