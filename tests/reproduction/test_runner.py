"""The reproduction: claims are declared in full, no run is made twice, failures are listed, nothing is lost."""

import json
import re
from pathlib import Path

import pytest
import torch

from reproduction import items, protocol, records, runner
from reproduction.claims import MISSING, Claim, Finding, Item
from reproduction.records import Results
from reproduction.runs import FULL, PRESETS, QUICK, Measure, Train
from reproduction.verdicts import NOT_RUN, VERDICTS

ROOT = Path(__file__).parents[2]
CALLS = []
TINY = {
    "task": {"name": "mqar", "n": 2, "vocab_size": 16},
    "model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "ffn": 16},
    "train": {"steps": 6, "batch_size": 4, "log_every": 2, "eval_every": 3, "eval_batches": 1, "eval_batch_size": 8},
}


def square(x):
    CALLS.append(x)
    if x < 0:
        raise ValueError("no negative numbers")
    return {"square": x * x}


def measure(x):
    return Measure(square, {"x": x})


def judge(results, preset, x=3):
    found = results.value(measure(x))
    return MISSING if found is None else Finding("reproduced", found["square"])


def item(*runs, name="small", then=lambda results, preset: ()):
    claim = Claim("P0-square", "nowhere", "three squared is nine", 9.0, "equal", judge)
    return Item(name, "P0", "Squares", "About squares.", [claim], lambda preset: list(runs), then=then)


def work(tmp_path, *given, **options):
    return runner.reproduce(given, QUICK, reports=tmp_path / "reports", runs=tmp_path / "runs", device="cpu", **options)


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS)
def test_every_claim_says_where_what_and_how_and_is_missing_without_runs(preset):
    ids = [claim.id for each in items.ITEMS for claim in each.claims]
    assert len(set(ids)) == len(ids)
    for each in items.ITEMS:
        assert re.fullmatch(r"P\d+", each.number)
        assert each.claims
        for claim in each.claims:
            assert claim.where
            assert claim.says
            assert claim.rule
            assert claim.judge(Results(), preset).verdict == NOT_RUN


def test_items_cover_the_papers_list():
    assert {f"P{i}" for i in (6, 7, 8, 9, 10, 11)} <= {each.number for each in items.ITEMS}


def test_every_run_can_be_made():
    for preset in PRESETS.values():
        for each in items.ITEMS:
            for run in each.runs(preset):
                assert run.label
                assert isinstance(run, Measure) or run.config.train.steps > 0
    seeds = {run.config.seed for each in items.ITEMS for run in each.runs(FULL) if isinstance(run, Train)}
    assert {42, 123, 999} <= seeds


def test_a_run_is_known_by_its_settings():
    assert Train({"seed": 42}).key == Train({}).key == Train({"mechanism": "vla"}).key
    assert Train({"seed": 43}).key != Train({}).key
    assert measure(1).key != measure(2).key


def test_what_is_recorded_is_not_measured_again(tmp_path):
    CALLS.clear()
    first = work(tmp_path, item(measure(3)))
    again = work(tmp_path, item(measure(3), measure(4)))
    assert CALLS == [3, 4]
    assert (first.before, first.made, again.before, again.made) == (0, 1, 1, 1)
    assert judge(records.load(tmp_path / "reports", "quick"), QUICK).ours == 9


def threads():
    return torch.get_num_threads()


def test_what_is_not_timed_does_not_depend_on_the_number_of_cores(tmp_path):
    torch.set_num_threads(2)
    alone, beside = (Measure(threads), Measure(threads, timed=True))
    try:
        assert work(tmp_path / "a", item(alone)).results.value(alone) == 1
        assert work(tmp_path / "b", item(beside)).results.value(beside) == 2
    finally:
        torch.set_num_threads(1)


def test_two_items_share_a_run(tmp_path):
    CALLS.clear()
    work(tmp_path, item(measure(3), name="one"), item(measure(3), name="two"))
    assert CALLS == [3]
    assert {path.name for path in (tmp_path / "reports" / "quick").iterdir()} == {"one.json", "two.json"}


def test_failures_are_listed_and_the_rest_goes_on(tmp_path):
    outcome = work(tmp_path, item(measure(-1), measure(3)))
    ((name, reason),) = outcome.failed
    assert "x=-1" in name
    assert "no negative numbers" in reason
    assert judge(outcome.results, QUICK).ours == 9
    assert "no negative" not in (tmp_path / "reports/quick/small.json").read_text()  # it is tried again next time


def test_what_follows_from_the_first_runs_is_run_too(tmp_path):
    CALLS.clear()

    def then(results, preset):
        found = results.value(measure(3))
        return [] if found is None else [measure(found["square"])]

    outcome = work(tmp_path, item(measure(3), then=then))
    assert CALLS == [3, 9]
    assert outcome.results.value(measure(9)) == {"square": 81}
    assert records.load(tmp_path / "reports", "quick").value(measure(9)) == {"square": 81}


def test_training_runs_leave_small_records_and_repeat_to_the_same_numbers(tmp_path):
    run = Train(TINY)
    found = [work(tmp_path / name, item(run)).results.get(run) for name in ("one", "two")]
    same = [{key: each[key] for key in ("final", "curves", "train", "parameters")} for each in found]
    assert same[0] == same[1]
    assert found[0]["status"] == "finished"
    assert [step for step, _ in found[0]["curves"]["eval"]] == [3, 6]
    assert 0 <= found[0]["final"]["eval"] <= 1
    assert (tmp_path / "one/reports/quick/small.json").stat().st_size < 4000
    assert Train(found[0]["train"]).key == run.key  # the record is enough to make the run again


def test_out_of_time_leaves_the_rest_for_later(tmp_path):
    CALLS.clear()
    outcome = work(tmp_path, item(measure(3), Train(TINY)), minutes=0)
    assert (outcome.made, outcome.left, CALLS) == (0, 2, [])


def test_a_damaged_record_is_named(tmp_path):
    work(tmp_path, item(measure(3)))
    path = tmp_path / "reports/quick/small.json"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(ValueError, match=r"small\.json is damaged"):
        work(tmp_path, item(measure(3)))


def test_numbers_that_are_not_finite_become_text():
    assert json.loads(json.dumps(records.rounded({"x": [float("nan"), 1 / 3]}))) == {"x": ["nan", 0.333333]}


def test_records_with_the_old_name_of_an_accuracy_are_read_under_the_new_one():
    path = ROOT / "reports/quick/copy.json"
    kept = {record["key"]: record for record in json.loads(path.read_text())["runs"]}
    assert all("eval/eval" in record["final"] for record in kept.values())
    read = records.load(ROOT / "reports", "quick")
    for key, record in kept.items():
        assert read.records[key]["final"] == {"eval": record["final"]["eval/eval"]}
        assert read.records[key]["curves"]["eval"] == record["curves"]["eval/eval"]
        assert read.records[key]["curves"].keys() == {"eval", "loss"}


def accuracies(*values):
    runs = [Train({"seed": i}) for i in range(len(values))]
    found = {
        run.key: {"key": run.key, "status": "finished", "final": {"eval": x}}
        for run, x in zip(runs, values, strict=True)
    }
    return Results(found), lambda preset: runs


@pytest.mark.parametrize(("values", "verdict"), [((0.98, 1.0), "reproduced"), ((0.5, 1.0), "not reproduced")])
def test_judges_by_the_mean_over_seeds(values, verdict):
    results, runs = accuracies(*values)
    found = protocol.within(runs, 1.0, 0.05)(results, FULL)
    assert (found.verdict, found.count, found.low, found.high) == (verdict, 2, min(values), max(values))
    assert protocol.at_least(runs, 0.95)(results, FULL).verdict == verdict


def test_a_judge_waits_for_all_seeds():
    results, runs = accuracies(1.0, 1.0)
    results.records.popitem()
    claim = Claim("P0-recall", "nowhere", "all is recalled", 1.0, "within 0.05", protocol.within(runs, 1.0, 0.05))
    assert claim.judge(results, FULL) is MISSING


def test_a_diverged_run_counts_as_nothing_right():
    results, runs = accuracies(1.0, 1.0)
    results.records[runs(FULL)[0].key]["status"] = "diverged"
    assert protocol.within(runs, 1.0, 0.05)(results, FULL).ours == 0.5


def test_intervals_are_students():
    assert protocol.Sample((1.0, 2.0, 3.0)).interval == pytest.approx((2 - 2.484, 2 + 2.484), abs=1e-3)
    assert protocol.Sample((0.5,)).interval == (0.5, 0.5)


def test_a_verdict_is_one_of_five():
    assert len(VERDICTS) == 5
    with pytest.raises(ValueError, match="verdict must be one of"):
        Finding("probably")
