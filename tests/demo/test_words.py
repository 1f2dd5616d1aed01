"""The demo's sentences say what the results are, in every case."""

import pytest

from tests.demo.cases import ACCURACIES, results
from varla.demo import sentences
from varla.demo.runs import PAIRS
from varla.demo.words import learned, seeds_ahead


def by_name(**changes):
    return {result.name: result for result in results(changes)}


def test_the_headline_names_the_best_state_and_gated_vla():
    headline = sentences(results())[0]
    assert headline.startswith(f"Softmax attention recalls 100% of {PAIRS} pairs.")
    assert headline.endswith("that of gated-deltanet with wide values recalls the most, 92%; gated-vla recalls 72%.")
    headline = sentences(results({"gated-vla": (0.95, 0.95, 0.95)}))[0]
    assert headline.endswith("that of gated-vla recalls the most, 95%.")


def test_runs_of_the_same_seed_are_compared():
    found = by_name()
    assert seeds_ahead(found["gated-vla"], found["gated-deltanet"]) == 3
    assert seeds_ahead(found["gated-deltanet"], found["gated-vla"]) == 0
    assert seeds_ahead(found["linear"], found["linear"]) == 0  # equal is not ahead
    assert (
        seeds_ahead(by_name(deltanet=(0.9, 0.1, 0.1))["gated-vla"], by_name(deltanet=(0.9, 0.1, 0.1))["deltanet"]) == 2
    )


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        (
            (0.70, 0.72, 0.74),
            "gated-deltanet (0.60 to 0.64) with 3 of 3 seeds, and more than deltanet (0.63 to 0.71) with 3",
        ),
        (
            (0.70, 0.62, 0.60),
            "gated-deltanet (0.60 to 0.64) with 1 of 3 seeds, and more than deltanet (0.63 to 0.71) with 1",
        ),
        (
            (0.50, 0.50, 0.50),
            "gated-deltanet (0.60 to 0.64) with 0 of 3 seeds, and more than deltanet (0.63 to 0.71) with 0",
        ),
    ],
)
def test_gated_vla_is_compared_with_rules_of_the_same_head_size(ours, said):
    assert said in " ".join(sentences(results({"gated-vla": ours})))


@pytest.mark.parametrize(
    ("wide", "said"),
    [
        ((0.90, 0.92, 0.94), "Here the bytes of A are better spent on wider values."),
        ((0.60, 0.61, 0.62), "Here the bytes of A recall more."),
        (
            (0.60, 0.71, 0.80),
            "The seeds do not agree which use of the bytes is better: gated-vla recalls more with 2 of 3.",
        ),
    ],
)
def test_the_same_bytes_in_wider_values_are_always_compared(wide, said):
    assert said in " ".join(sentences(results({"gated-deltanet, wide": wide})))


def test_the_cache_and_the_speed_are_ratios_of_what_was_measured():
    text = " ".join(sentences(results()))
    assert "5.0 times the state of gated-vla" in text
    assert "65,537 times at 1,048,576 tokens" in text
    assert "0.50 times the speed of gated-deltanet" in text


def test_seeds_that_did_not_find_the_task_are_named():
    text = sentences(results({"vla": (0.08, 0.5, 0.5), "linear": (0.5, 0.5, 0.5)}))[-1]
    assert "vla with 2 of 3" in text
    assert "linear" not in text
    assert not any("Not every seed" in each for each in sentences(results({"linear": (0.5, 0.5, 0.5)})))
    assert [learned(result) for result in results({"vla": (0.08, 0.5, 0.5)}) if result.name == "vla"] == [2]


def test_results_without_any_recall_are_not_ranked():
    headline, *more = sentences(results(dict.fromkeys(ACCURACIES, (0.05, 0.05, 0.05))))
    assert "no mechanism recalls yet: the best is right at 5%" in headline
    assert "ahead" not in " ".join([headline, *more])
    assert "--steps" in more[0]


def test_overlapping_ranges_are_named():
    apart = {"gated-vla": (0.9, 0.95, 0.99), "gated-deltanet": (0.6, 0.62, 0.64), "deltanet": (0.63, 0.7, 0.71)}
    assert "overlap" not in " ".join(sentences(results(apart)))
    one = sentences(results({**apart, "deltanet": (0.1, 0.2, 0.9)}))[1]
    assert one.endswith("The range of gated-vla overlaps that of deltanet: more seeds are needed.")
    both = sentences(results({**apart, "gated-vla": (0.61, 0.95, 0.99), "deltanet": (0.1, 0.2, 0.9)}))[1]
    assert both.endswith(
        "The range of gated-vla overlaps that of gated-deltanet and of deltanet: more seeds are needed."
    )
