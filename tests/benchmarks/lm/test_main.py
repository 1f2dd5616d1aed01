"""The comparison at its smallest size: made in parts, continued, and what happens when a run diverges."""

import json
import math
from dataclasses import replace

import pytest
import torch

from benchmarks import measure
from benchmarks.lm import __main__ as command
from benchmarks.lm import data
from benchmarks.lm.contenders import CONTENDERS, EVERY, FULL, GATED, GATED_CONTENDERS, QUICK, budget, flops
from benchmarks.lm.record import Record
from benchmarks.lm.run import Job, build, gate_means, run, schedule


def fake(bits):
    """A run's result, without the run."""
    contexts = {"64": bits, "32": bits + 0.1, "2048": bits - 0.1}
    found = {"status": "finished", "steps": 3, "tokens/s": 1e6, "seconds": {"all": 1.0}, "bits per byte": contexts}
    return {**found, "parameters": 10, "state bytes": {"2048": 8}, "loss": [[1, 2.0]]}


def best_at(rate):
    return lambda job: fake(1 + abs(math.log(job.rate / rate)))


def first(name, scale):
    return Job(name, "choice", scale.rates[0], 0, scale.choice)


def test_it_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    out = tmp_path / "lm.json"
    arguments = ["--quick", "--only", "vla", "softmax", "--seeds", "1", "--out", str(out)]
    made = []

    def stopping(job, *rest):
        if len(made) == 4:
            raise KeyboardInterrupt
        made.append(job)
        return run(job, *rest)

    with monkeypatch.context() as patched:
        patched.setattr(command, "run", stopping)
        with pytest.raises(KeyboardInterrupt):
            command.main(arguments)
    before = json.loads(out.read_text())["runs"]
    assert len(before) == 4
    assert command.main(arguments) == 0
    after = json.loads(out.read_text())["runs"]
    assert after[:4] == before
    assert [each["settings"]["purpose"] for each in after] == ["choice"] * 6 + ["report"] * 2
    for each in after:
        assert each["status"] == "finished"
        assert each["tokens/s"] > 0
        assert all(0 < bits < 16 for bits in each["bits per byte"].values())
    assert list(after[-1]["bits per byte"]) == [str(context) for context in QUICK.contexts]
    monkeypatch.setattr(command, "run", lambda *_: pytest.fail("all runs were made"))
    capsys.readouterr()
    assert command.main(arguments) == 0
    assert "| vla |" in capsys.readouterr().out


def test_the_best_rate_is_reported_seed_by_seed(tmp_path):
    record = Record.load(tmp_path / "lm.json", QUICK, "text")
    assert record.chosen("vla") is None
    command.work(record, list(CONTENDERS), None, best_at(3e-3))
    assert len(record.runs) == len(CONTENDERS) * (len(QUICK.rates) + len(QUICK.seeds))
    assert all(record.chosen(name) == 3e-3 for name in CONTENDERS)
    reported = [each["settings"] for each in record.runs if each["settings"]["purpose"] == "report"]
    assert {each["rate"] for each in reported} == {3e-3}
    assert [each["seed"] for each in reported] == [1] * len(CONTENDERS) + [2] * len(CONTENDERS)
    assert {each["seed"] for each in reported} == set(QUICK.seeds)


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (1.4e-3, [5e-4, 1.5e-3, 4.5e-3]),
        (1.2e-2, [5e-4, 1.5e-3, 4.5e-3, 1.35e-2, 4.05e-2]),
        (1.0, [5e-4, 1.5e-3, 4.5e-3, 1.35e-2, 4.05e-2]),
        (1.8e-4, [5e-4, 1.5e-3, 4.5e-3, 1.67e-4, 5.58e-5]),
        (4e-3, [5e-4, 1.5e-3, 4.5e-3, 1.35e-2]),
    ],
)
def test_rates_beyond_the_first_or_last_are_tried_while_that_is_best(tmp_path, best, tried):
    record = Record.load(tmp_path / "lm.json", replace(FULL, contexts=(64,), context=64), "text")
    command.work(record, ["vla"], None, best_at(best))
    settings = [each["settings"] for each in record.runs]
    assert [each["rate"] for each in settings if each["purpose"] == "choice"] == tried
    closest = min(tried, key=lambda rate: abs(math.log(rate / best)))
    assert {each["rate"] for each in settings if each["purpose"] == "report"} == {closest}
    assert record.next(["vla"]) is None


def test_the_recorded_runs_are_known_as_done():
    path = measure.RESULTS / "lm.json"
    corpora = {each["settings"]["corpus"] for each in json.loads(path.read_text())["runs"]}
    assert [Record.load(path, FULL, corpus).next(list(CONTENDERS)) for corpus in corpora] == [None]


def test_other_settings_or_text_are_other_runs(tmp_path):
    record = Record.load(tmp_path / "lm.json", QUICK, "text")
    command.work(record, ["vla"], None, best_at(1e-3))
    for scale, text in ((replace(QUICK, rows=4), "text"), (QUICK, "other text")):
        assert Record.load(tmp_path / "lm.json", scale, text).next(["vla"]) == first("vla", scale)
    assert Record.load(tmp_path / "lm.json", QUICK, "text").next(["vla"]) is None


def test_a_run_that_would_not_end_in_time_is_not_begun(tmp_path, monkeypatch, capsys):
    record = Record.load(tmp_path / "lm.json", FULL, "text")
    clock = [0.0]
    monkeypatch.setattr(command.time, "monotonic", lambda: clock[0])

    def slow(job):
        clock[0] += 20
        return fake(1.0)

    command.work(record, ["softmax"], 60.0, slow)
    assert len(record.runs) == 2
    assert "no time for softmax, choice" in capsys.readouterr().out


def test_one_that_fails_does_not_stop_the_others(tmp_path, capsys):
    record = Record.load(tmp_path / "lm.json", QUICK, "text")

    def found(job):
        if job.contender == "linear":
            raise RuntimeError("out of memory")
        return fake(1.0)

    assert command.work(record, ["softmax", "linear", "vla"], None, found) == ["linear"]
    assert "out of memory" in capsys.readouterr().err
    assert {each["settings"]["contender"] for each in record.runs} == {"softmax", "vla"}
    assert record.next(["linear"]) == first("linear", QUICK)


def test_what_diverged_is_not_chosen(tmp_path):
    record = Record.load(tmp_path / "lm.json", QUICK, "text")

    def found(job):
        return fake(1.0) if job.rate == 1e-2 else {**fake(1.0), "status": "diverged", "bits per byte": {}}

    command.work(record, ["vla"], None, found)
    assert record.chosen("vla") == 1e-2
    everywhere = Record(tmp_path / "other.json", QUICK, "text")
    command.work(everywhere, ["vla"], None, lambda job: {**fake(1.0), "status": "diverged", "bits per byte": {}})
    assert everywhere.chosen("vla") is None
    assert len(everywhere.runs) == len(QUICK.rates)


def test_a_loss_that_is_not_finite_is_a_run_that_diverged():
    train, validation = data.own()
    rows = data.Texts.of(train, QUICK.context, torch.device("cpu"))
    held = data.Validation.of(validation, max(QUICK.contexts), QUICK.context, QUICK.scored, QUICK.tried)
    found = run(Job("linear", "choice", math.inf, 0, QUICK.choice), QUICK, rows, held)
    assert found["status"] == "diverged"
    assert found["bits per byte"] == {}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize("name", EVERY)
def test_models_have_30_million_parameters_and_their_mixers(name):
    with torch.device("meta"):
        model = build(name, FULL)
    assert 27e6 < sum(p.numel() for p in model.parameters()) < (32e6 if "wide" in name else 31e6)
    assert set(model.config.layer_mechanisms) == set(EVERY[name].layers)
    assert len(model.config.layer_mechanisms) == FULL.depth
    assert flops(name, FULL) > 6 * 25e6


def test_the_rate_rises_and_falls():
    rates = [schedule(1.0, 100)(i) for i in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1, abs=0.01)


def test_the_contexts_divide_the_longest():
    assert all(max(scale.contexts) % context == 0 for scale in (FULL, QUICK) for context in scale.contexts)
    assert FULL.contexts == (512, 2048, 8192, 32768)


def test_the_budget(capsys):
    assert command.main(["--budget", "--tokens", "1000000"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in CONTENDERS)
    assert "15 steps reported, 228 to choose" in shown
    assert len(budget(FULL)) == len(CONTENDERS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [([], "--corpus FOLDER is needed"), (["--quick", "--seeds", "0"], "--seeds must be at least 1, got 0")],
)
def test_mistakes_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        command.main(arguments)
    assert message in capsys.readouterr().err


def test_the_comparison_with_gates_has_contenders_and_records_of_its_own(capsys):
    assert command.main(["--gated", "--budget"]) == 0
    shown = capsys.readouterr().out
    assert [row[0] for row in budget(GATED, among=GATED_CONTENDERS)] == list(GATED_CONTENDERS)
    assert all(name in shown for name in GATED_CONTENDERS)
    assert "linear" not in shown
    assert command.parse(["--gated", "--corpus", "x"]).out.name == "lm_gated.json"
    assert GATED.choice == GATED.tokens, "rates are tried at full length"


def test_runs_that_try_rates_at_full_length_are_reported(tmp_path):
    scale = replace(GATED, contexts=(2048,), context=64, tokens=640, choice=640)
    record = Record.load(tmp_path / "lm.json", scale, "text")

    def found(job):
        bits = 1 + abs(math.log(job.rate / 4.5e-3)) + job.seed
        return {**fake(bits), "tried": {"64": bits}}

    command.work(record, ["vla", "softmax"], None, found)
    made = [each["settings"] for each in record.runs]
    assert {each["purpose"] for each in made} == {"report"}
    assert [(each["rate"], each["contender"]) for each in made[:3]] == [
        (1.5e-3, "vla"), (1.5e-3, "softmax"), (4.5e-3, "vla")
    ]  # fmt: skip
    assert [each["seed"] for each in made] == [1] * 4 + [2] * 2 + [3] * 2
    assert {each["rate"] for each in made if each["seed"] > 1} == {4.5e-3} == {record.chosen("vla")}
    assert "| 0.0045 | 1, 2, 3 |" in command.markdown(record.runs)


def test_such_a_run_is_scored_on_both_texts():
    train, validation = data.own()
    rows = data.Texts.of(train, QUICK.context, torch.device("cpu"))
    held = data.Validation.of(validation, max(QUICK.contexts), QUICK.context, QUICK.scored, QUICK.tried)
    scale = replace(QUICK, choice=QUICK.tokens)
    made = run(Job("linear", "report", 1e-3, 1, QUICK.tokens), scale, rows, held)
    assert list(made["bits per byte"]) == [str(context) for context in QUICK.contexts]
    assert list(made["tried"]) == [str(QUICK.context)]
    assert made["gates"] == {}


def test_the_gates_of_every_layer_are_recorded():
    torch.manual_seed(0)
    model = build("gated-vla", QUICK)
    found = gate_means(model, torch.arange(64)[None])
    assert len(found) == 3 * QUICK.depth
    assert {name.rpartition(".")[2] for name in found} == {"beta", "decay", "strength"}
    strengths = [each for name, each in found.items() if name.endswith("strength")]
    assert all(each == pytest.approx([0.03, 0.5], rel=0.5) for each in strengths)
