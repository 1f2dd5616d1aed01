"""Judges of the experiments that train, on records that were never measured."""

import pytest

from reproduction import records
from reproduction.items import ablation, capacity, copying, fair, long_context, ood, overload, training_log
from reproduction.records import Results
from reproduction.runs import FULL, QUICK
from tests.reproduction.fabricate import claim
from varla.runs.metrics import eval_metric


def trained(*groups, status="finished", curve=(), names=("eval",)):
    """Results from (runs, accuracies): one accuracy for all, or one each, or a tuple each for several evaluations."""
    records = {}
    for runs, given in groups:
        values = given if isinstance(given, list) else [given] * len(runs)
        for run, value in zip(runs, values, strict=True):
            several = value if isinstance(value, tuple) else (value,)
            final = {eval_metric(name): x for name, x in zip(names, several, strict=True)}
            records[run.key] = {"status": status, "final": final, "message": "", "curves": {"eval": list(curve)}}
            records[run.key] |= {"parameters": 1000, "state bytes": 10}
    return Results(records)


def verdict(item, name, found, preset=FULL):
    return claim(item, name).judge(found, preset).verdict


@pytest.mark.parametrize(
    ("bare", "expected"), [(0.06, "reproduced with conditions"), (1.0, "reproduced"), (None, "reproduced")]
)
def test_recall_is_held_against_the_text_without_its_output_norm(bare, expected):
    groups = [(capacity.seeds(FULL, "vla", 24), [1.0, 1.0, 0.99])]
    groups += [] if bare is None else [(capacity.seeds(FULL, "vla", 24, norm=False), bare)]
    assert verdict(capacity.ITEM, "P7-vla-24", trained(*groups)) == expected


def test_recall_that_is_not_reached_is_not_reproduced():
    assert verdict(capacity.ITEM, "P7-vla-24", trained((capacity.seeds(FULL, "vla", 24), 0.5))) == "not reproduced"


def test_the_copy_task_is_reproduced_only_because_nothing_is_copied():
    runs = copying.seeds(QUICK, "vla", copying.IDENTITY)
    good = trained((runs, 1.0), curve=[(100, 0.9), (150, 1.0), (300, 1.0)])
    late = trained((runs, 1.0), curve=[(100, 0.9), (150, 0.99), (300, 1.0)])
    assert verdict(copying.ITEM, "P6-identity-vla", good, QUICK) == "reproduced with conditions"
    assert verdict(copying.ITEM, "P6-identity-vla", late, QUICK) == "not reproduced"
    assert verdict(copying.ITEM, "P6-copy-vla", good, QUICK) == "not run"


@pytest.mark.parametrize(
    ("curve", "expected"),
    [
        ([(800, 0.1), (1000, 0.05), (1200, 0.99)], "not reproduced"),
        ([(800, 0.25), (1200, 0.6), (1600, 0.95)], "reproduced"),
        ([(800, 0.1), (2000, 0.5)], "not reproduced"),
    ],
)
def test_a_climb_takes_time_and_a_jump_does_not(curve, expected):
    found = trained((training_log.seeds(FULL, "vla", 24), curve[-1][1]), curve=curve)
    assert verdict(training_log.ITEM, "P9-log-climb", found) == expected


def test_the_effect_of_steps_needs_both_lengths():
    short, long = overload.seeds(FULL, "vla", 24), training_log.seeds(FULL, "vla", 24)
    assert verdict(overload.ITEM, "P9-steps", trained((short, 0.99))) == "not run"
    assert verdict(overload.ITEM, "P9-steps", trained((short, 0.99), (long, 1.0))) == "reproduced"
    assert verdict(overload.ITEM, "P9-steps", trained((short, 0.3), (long, 1.0))) == "not reproduced"


def test_the_drop_on_new_keys_is_judged_where_old_ones_are_learnt():
    short, long = (ood.seeds(FULL, "vla", 24, steps) for steps in (ood.SHORT, ood.LONG))
    names = ("id", "ood")
    unlearnt = trained((short, (0.2, 0.2)), (long, (1.0, 0.69)), names=names)
    assert verdict(ood.ITEM, "P10-drop-24", unlearnt) == "reproduced"
    assert "after 3000 steps" in claim(ood.ITEM, "P10-drop-24").judge(unlearnt, FULL).note
    no_drop = trained((short, (1.0, 1.0)), (long, (1.0, 0.69)), names=names)
    assert verdict(ood.ITEM, "P10-drop-24", no_drop) == "not reproduced"


def test_one_n_where_fixing_A_is_far_from_linear_attention_is_a_counter_example():
    fixed, linear = ablation.seeds(FULL, 8, ablation.FIXED), ablation.linear(FULL, 8)
    assert verdict(ablation.ITEM, "P11-fixed-linear", trained((fixed, 1.0), (linear, 0.15))) == "false"
    assert verdict(ablation.ITEM, "P11-fixed-linear", trained((fixed, 0.15), (linear, 0.5))) == "false"
    assert verdict(ablation.ITEM, "P11-fixed-linear", trained((fixed, 0.15), (linear, 0.15))) == "not run"  # at other n
    everywhere = [(ablation.seeds(FULL, n, ablation.FIXED), 0.15) for n in ablation.PAIRS]
    everywhere += [(ablation.linear(FULL, n), 0.15) for n in ablation.PAIRS]
    assert verdict(ablation.ITEM, "P11-fixed-linear", trained(*everywhere)) == "reproduced"
    assert all(run.config.layer["output_norm"] == "layer" for run in linear)  # VLA has it, too: like against like


def test_training_without_key_normalisation_is_judged_by_its_end():
    runs = ablation.bare_keys(FULL, 96)
    assert verdict(ablation.ITEM, "P11-bare-keys-96", trained((runs, 0.0), status="diverged")) == "reproduced"
    assert verdict(ablation.ITEM, "P11-bare-keys-96", trained((runs, 0.9))) == "not reproduced"


def chosen(name, rates, task="mqar", head_dim=32):
    """(run, accuracy) of every learning rate on the data it is chosen on."""
    runs = [fair.run(name, task, fair.CHOSEN_AT, head_dim, rate, fair.CHOOSING) for rate in fair.RATES]
    return runs, rates


def test_the_learning_rate_is_the_best_on_data_that_is_not_reported():
    results = trained(chosen("vla", [0.1, 0.7, 0.9, 0.0]))
    assert fair.chosen_rate(results, "vla", "mqar", 32) == 3e-3
    assert fair.chosen_rate(results, "linear", "mqar", 32) is None
    reported = [run for n in fair.PAIRS for run in fair.finals(results, "vla", "mqar", n, 32)]
    assert {run.config.train.lr for run in reported} == {3e-3}
    assert fair.CHOOSING not in {run.config.seed for run in reported}
    assert {run.key for run in fair.then(results, FULL)} == {run.key for run in reported}


def compare_at(monkeypatch, *pairs):
    """Leave these points of the fair comparison, on one task and with one head dimension."""
    for name, value in {"TASKS": ("mqar",), "HEAD_DIMS": (32,), "PAIRS": pairs}.items():
        monkeypatch.setattr(fair, name, value)


@pytest.mark.parametrize(
    ("vla", "deltanet", "expected"),
    [
        (0.9, 0.5, "reproduced"),
        (0.5, 0.9, "not reproduced"),
        (0.9, 0.9, "not reproduced"),
        (0.05, 0.01, "not run"),  # neither has learnt anything
    ],
)
def test_contenders_are_compared_by_their_intervals(vla, deltanet, expected, monkeypatch):
    compare_at(monkeypatch, 16)
    tuned = trained(chosen("vla", [0.1, 0.7, 0.9, 0.0]), chosen("deltanet", [0.1, 0.7, 0.9, 0.0]))
    ours, theirs = (fair.finals(tuned, name, "mqar", 16, 32) for name in ("vla", "deltanet"))
    results = Results({**tuned.records, **trained((ours, vla), (theirs, deltanet)).records})
    assert verdict(fair.ITEM, "P18-vla-deltanet", results) == expected
    assert len(fair.tables(results, FULL)[0].rows) == 2
    assert fair.figures(results, FULL)


@pytest.mark.parametrize(("vla", "deltanet", "expected"), [(0.9, 0.5, "not run"), (0.5, 0.9, "not reproduced")])
def test_one_point_settles_what_is_below_and_no_other(vla, deltanet, expected, monkeypatch):
    compare_at(monkeypatch, 16, 32)
    tuned = trained(chosen("vla", [0.1, 0.7, 0.9, 0.0]), chosen("deltanet", [0.1, 0.7, 0.9, 0.0]))
    ours, theirs = (fair.finals(tuned, name, "mqar", 16, 32) for name in ("vla", "deltanet"))
    results = Results({**tuned.records, **trained((ours, vla), (theirs, deltanet)).records})
    assert verdict(fair.ITEM, "P18-vla-deltanet", results) == expected


def test_a_hair_below_is_not_below(monkeypatch):
    compare_at(monkeypatch, 16, 32)
    tuned = trained(*(chosen(name, [0.1, 0.7, 0.9, 0.0]) for name in ("vla", "deltanet")))
    groups = []
    for n, (ours, theirs) in {16: (0.9999, 1.0), 32: (0.9, 0.1)}.items():
        groups += [
            (fair.finals(tuned, "vla", "mqar", n, 32), ours),
            (fair.finals(tuned, "deltanet", "mqar", n, 32), theirs),
        ]
    results = Results({**tuned.records, **trained(*groups).records})
    assert verdict(fair.ITEM, "P18-vla-deltanet", results) == "reproduced with conditions"  # two points: no interval


@pytest.mark.parametrize(
    ("gaps", "expected"),
    [
        ([[0.4, 0.4, 0.4], [0.3, 0.3, 0.3], [0.35, 0.35, 0.35]], "reproduced"),
        ([[0.4, 0.4, 0.4], [-0.4, 0.0, -0.1], [0.1, -0.3, -0.2]], "reproduced with conditions"),  # clear at one alone
        ([[0.4, 0.1, 0.4], [-0.4, 0.0, -0.4], [0.1, -0.3, 0.0]], "not reproduced"),  # above here, below there
    ],
)
def test_above_on_average_or_clearly_at_a_point(gaps, expected, monkeypatch):
    compare_at(monkeypatch, 16, 32, 64)
    tuned = trained(*(chosen(name, [0.1, 0.7, 0.9, 0.0]) for name in ("vla", "deltanet")))
    groups = []
    for n, by_seed in zip((16, 32, 64), gaps, strict=True):
        groups += [
            (fair.finals(tuned, "vla", "mqar", n, 32), [0.5 + gap for gap in by_seed]),
            (fair.finals(tuned, "deltanet", "mqar", n, 32), [0.45, 0.5, 0.55]),
        ]
    results = Results({**tuned.records, **trained(*groups).records})
    assert verdict(fair.ITEM, "P18-vla-deltanet", results) == expected


def test_an_interval_of_accuracies_is_one_of_accuracies():
    assert fair.within((-0.2, 0.5)) == (0.0, 0.5)
    assert fair.within((0.8, 1.4)) == (0.8, 1.0)


def test_the_precision_is_checked_at_a_few_points():
    n, head_dim = fair.CHECKED
    tuned = trained(chosen("vla", [0.1, 0.7, 0.9, 0.0], head_dim=head_dim))
    assert fair.exact(tuned, "linear", "mqar") is None
    exact, reported = fair.exact(tuned, "vla", "mqar"), fair.finals(tuned, "vla", "mqar", n, head_dim)
    assert (exact.config.train.precision, reported[0].config.train.precision) == ("fp32", "bf16")
    assert exact.key in {run.key for run in fair.then(tuned, FULL)}
    results = Results({**tuned.records, **trained(([exact], 0.75), (reported, 0.5)).records})
    *_, table = fair.tables(results, FULL)
    assert table.rows == [("mqar", "vla", 0.5, 0.75, -0.25)]


def test_what_is_on_its_way_is_said_to_be():
    runs, later = (long_context.seeds(FULL, *long_context.LATE, steps=steps) for steps in (3000, long_context.LATER))
    assert {run.key for run in later} <= {run.key for run in long_context.runs(FULL)}
    results = trained((runs, 0.1), (later, 0.9))
    found = claim(long_context.ITEM, "P8-deltanet-paper-64").judge(results, FULL)
    assert (found.verdict, found.note) == ("not reproduced", "it is 0.900 after 6000 steps")


def test_rates_that_are_as_good_leave_room_on_both_sides():
    assert fair.chosen_rate(trained(chosen("vla", [1.0, 1.0, 0.9999, 0.0])), "vla", "mqar", 32) == 1e-3


def note(item, name, results):
    return claim(item, name).judge(results, FULL).note


def test_what_did_not_come_out_says_what_other_runs_gave():
    short, quick, long = (
        overload.seeds(FULL, "vla", 24),
        overload.fast(FULL, "vla", 24),
        capacity.seeds(FULL, "vla", 24),
    )
    results = trained((short, 0.1), (quick, 0.98), (long, 1.0))
    said = note(overload.ITEM, "P9-overload-vla-24", results)
    assert "0.980 with a learning rate of 0.001 instead of 3e-4" in said
    assert "1.000 after 3000 steps" in said
    assert "instead of" not in note(overload.ITEM, "P9-overload-vla-24", trained((short, 0.99), (quick, 0.98)))
    keys = {run.key for run in overload.ITEM.runs(FULL)}
    assert keys >= {run.key for run in (*quick, *long)}


def test_new_keys_with_a_larger_rate_are_named():
    short, quick = ood.seeds(FULL, "vla", 24), ood.fast(FULL, 24)
    results = trained((short, (0.2, 0.1)), (quick, (1.0, 0.9)), names=("id", "ood"))
    assert "0.900 with a learning rate of 0.001" in note(ood.ITEM, "P10-vla-24-ood", results)
    assert {run.key for run in ood.ITEM.runs(FULL)} >= {run.key for run in quick}


def test_the_log_is_held_against_fewer_tokens():
    runs, fewer = training_log.seeds(FULL, "vla", 8), training_log.fewer(FULL, 8)
    results = trained((runs, 1.0), (fewer, 1.0))
    for each, first, last in ((runs, 4.87, 0.1), (fewer, 4.21, 0.5)):
        for run in each:
            results.records[run.key]["curves"]["loss"] = [(1, first), (2000, last)]
    said = note(training_log.ITEM, "P9-log-loss", results)
    assert "with 128 tokens it starts at 4.87; with 67 tokens it starts at 4.21 and ends at 0.50" in said
    assert {run.config.task["vocab_size"] for run in fewer} == {67}
    assert not training_log.fewer(QUICK, 8)


def test_a_number_on_the_way_is_found_on_it():
    runs = capacity.seeds(FULL, "deltanet-paper", 8)
    results = trained((runs, 1.0), curve=[(600, 0.1), (1200, 0.5), (1800, 0.9), (3000, 1.0)])
    assert "0.500 at step 1200 (seeds from 0.500 to 0.500) and 0.900 at step 1800" in note(
        capacity.ITEM, "P7-deltanet-paper-8", results
    )


def test_every_evaluation_is_kept_where_a_step_is_named():
    (run, *_) = copying.seeds(FULL, "vla", copying.IDENTITY)
    steps = range(50, run.config.train.steps + 1, 50)
    metrics = [{"step": step, "eval": 1.0, "loss": 0.1} for step in steps]
    kept = records.of_training(run, {"status": "finished", "final": {"eval": 1.0}}, metrics)
    assert dict(kept["curves"]["eval"])[copying.BY] == 1.0
    assert len(kept["curves"]["loss"]) <= 20
    assert kept["curves"]["loss"][-1][0] == run.config.train.steps


def test_the_quick_preset_trains_little():
    runs = {run.key: run for item in (capacity.ITEM, ood.ITEM, ablation.ITEM) for run in item.runs(QUICK)}.values()
    assert 0 < len(runs) <= 10
    assert {run.config.task["n"] for run in runs} == {8}
    assert not fair.runs(QUICK)
