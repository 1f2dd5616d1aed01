"""Norms are those of the model's own forward, and what is said of them follows from the numbers."""

import pytest
import torch

from reproduction.items import norms, stability
from reproduction.items.stability import ITEM, MECHANISMS
from reproduction.records import Results
from reproduction.runs import QUICK
from reproduction.verdicts import CONDITIONAL, NOT_REPRODUCED, NOT_RUN, REPRODUCED
from tests.reproduction.fabricate import judged, results
from varla.backbone import Backbone, backbone_config

END = stability.longest(QUICK)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_streamed_norms_are_those_of_watch(mechanism):
    model = Backbone(backbone_config("paper", mechanism, d_model=16, n_heads=2, vocab_size=9), seed=1)
    tokens = torch.randint(0, 9, (1, 12), generator=torch.Generator().manual_seed(0))
    watched = model.watch(tokens)[-1]
    with torch.no_grad():
        for t, readings in norms.stream(model, tokens, [1, 5, 12]):
            for name, value in readings.items():
                torch.testing.assert_close(value, watched[name][:, t - 1], rtol=1e-3, atol=1e-4)


def test_positions_begin_again_where_they_end():
    model = Backbone(backbone_config("paper", "linear", d_model=16, n_heads=2, max_len=4), seed=1)
    found = norms.norms(model, 0, 30)
    assert found["t"] == [1, 25, 30]
    assert all(x > 0 for x in found["|S|"])


@pytest.mark.parametrize("T", [1000, 5000, END, 100_000])
def test_looks_are_few_in_order_and_include_what_judges_read(T):
    found = norms.marks(T)
    assert found == sorted(set(found))
    assert {1, 500, 1000, T} <= set(found)
    assert len(found) < 70
    if T >= END:
        assert T // 2 in found


@pytest.mark.parametrize("law", ["exponential", "power", "hyperbola"])
def test_the_law_that_made_the_numbers_fits_best(law):
    t = list(range(25, 1001, 25))
    make = {
        "exponential": lambda x: 56 * 2.718 ** (-x / 500),
        "power": lambda x: 56 * x**-0.4,
        "hyperbola": lambda x: 56 / (1 + x / 200),
    }[law]
    fits = stability.decays({"t": t, "|A|": [make(x) for x in t]})
    assert min(fits, key=lambda name: fits[name]) == law
    assert fits[law] < 1e-6


def fabricated(linear=1630.0, vla=14.0, late=None, trained=14.0, deltanet=1.0):
    t = norms.marks(END)
    made = {
        "linear": {"|S|": [linear * x / 1000 for x in t]},
        "deltanet-paper": {"|S|": [deltanet] * len(t)},
        "vla": {
            "|S|": [vla if x <= 1000 else late or vla for x in t],
            "|A|": [56 * 0.9983**x if x <= 1000 else 1.0 for x in t],
        },
    }
    found = [
        (stability.run(QUICK, name, seed), {"t": t, **value}) for name, value in made.items() for seed in QUICK.seeds
    ]
    last = {"t": t, "|S|": [trained] * len(t), "|A|": [1.0] * len(t), "accuracy": 1.0}
    return results([*found, (stability.trained_run(QUICK), last)])


def test_the_papers_own_numbers_are_reproduced():
    found = fabricated()
    assert {each.judge(found, QUICK).verdict for each in ITEM.claims} == {REPRODUCED}


@pytest.mark.parametrize(
    ("name", "changes", "verdict"),
    [
        ("P12-linear-norm", {"linear": 100.0}, NOT_REPRODUCED),
        ("P12-linear-rate", {"linear": 100.0}, NOT_REPRODUCED),
        ("P12-vla-norm", {"vla": 16.0}, CONDITIONAL),
        ("P12-vla-norm", {"vla": 40.0}, NOT_REPRODUCED),
        ("P12-ratio", {"vla": 40.0}, NOT_REPRODUCED),
        ("P12-plateau", {"late": 28.0}, CONDITIONAL),
        ("P12-trained", {"trained": 27.0}, NOT_REPRODUCED),
        ("P12-deltanet", {"deltanet": 20.0}, NOT_REPRODUCED),
    ],
)
def test_other_numbers_are_not(name, changes, verdict):
    assert judged(ITEM, name, fabricated(**changes)).verdict == verdict


def test_without_runs_nothing_is_said():
    assert {each.judge(Results(), QUICK).verdict for each in ITEM.claims} == {NOT_RUN}


def test_training_is_followed_by_reading():
    found = norms.trained(2, 1e-3, 42, 30)
    assert 0 <= found["accuracy"] <= 1
    assert found["t"][-1] == 30
    assert len(found["|S|"]) == len(found["|A|"]) == len(found["t"])
