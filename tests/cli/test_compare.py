"""varla compare: a row a run, from records alone, and plots that are really written."""

import csv
import io
import json
import shutil
from dataclasses import replace

import pytest

from tests.cli.cases import refused, varla
from tests.lm.cases import settings
from varla.runs.folder import RunFolder
from varla.training import Run


def row(result, name):
    assert result.exit_code == 0, result.output
    line = next(line for line in result.stdout.splitlines() if line.split("│")[1:2] == [f" {name} "])
    return [cell.strip() for cell in line.split("│")[1:-1]]


def test_a_row_for_every_run(trained, diverged):
    result = varla("compare", trained, diverged[0])
    mechanism, task, seed, steps, accuracy, chance, parameters, state, speed, status = row(result, "first ")[1:]
    assert (mechanism, task, seed, steps, chance, status) == ("vla", "mqar n=2", "42", "4", "0.0079", "finished")
    assert 0 <= float(accuracy) <= 1
    assert all(int(number.replace(",", "")) > 0 for number in (parameters, state, speed))
    broken = row(result, "second")
    assert (broken[4], broken[5], broken[-1]) == ("1", "", "diverged")


def test_run_that_was_killed_is_read_from_its_metrics(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "record.json").unlink()
    found = row(varla("compare", tmp_path / "run"), "run")
    assert (found[4], found[-1]) == ("4", "no record")


@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG\r\n\x1a\n"), ("b.svg", b"<svg"), ("c/d.html", b"<!doctype html>")]
)
def test_plot_is_written(trained, diverged, tmp_path, name, start):
    result = varla("compare", trained, diverged[0], "--plot", tmp_path / name)
    assert result.exit_code == 0
    assert "not drawn: second" in result.stdout
    assert (tmp_path / name).read_bytes().lstrip().startswith(start)


def test_another_metric(trained, diverged, tmp_path):
    result = varla("compare", trained, diverged[0], "--plot", tmp_path / "loss.svg", "--metric", "loss")
    assert "not drawn" not in result.stdout
    assert all(name in (tmp_path / "loss.svg").read_text() for name in ("first", "second"))


def with_old_names(folder, target):
    """A copy of a run as earlier versions wrote it."""
    shutil.copytree(folder, target)
    for name in ("metrics.jsonl", "record.json"):
        text = (folder / name).read_text()
        assert '"eval": ' in text
        (target / name).write_text(text.replace('"eval": ', '"eval/eval": '))
    return target


def test_runs_with_the_old_name_of_an_accuracy_are_read_as_the_others(trained, tmp_path):
    old = with_old_names(trained, tmp_path / trained.name)
    assert Run(old).metrics() == Run(trained).metrics()
    assert Run(old).record() == Run(trained).record()
    assert varla("compare", old).stdout == varla("compare", trained).stdout


def test_the_old_name_of_a_metric_is_understood(trained):
    assert varla("compare", trained, "--metric", "eval/eval").stdout == varla("compare", trained).stdout


def test_curves_are_drawn_below_the_table(trained, diverged, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    lines = varla("compare", trained, diverged[0]).stdout.splitlines()
    plot = lines[lines.index("accuracy (eval)") :]
    assert plot[1].split()[1] == "|"
    assert "  o first" in plot
    assert "not drawn: second has not logged eval" in plot
    assert max(map(len, plot)) <= 60
    loss = varla("compare", trained, diverged[0], "--metric", "loss").stdout.splitlines()
    assert {"loss", "  o first", "  x second"} <= {line.rstrip() for line in loss}


def test_no_plot_leaves_the_table_and_the_file(trained, tmp_path):
    result = varla("compare", trained, "--no-plot")
    assert result.stdout.rstrip().endswith("┘")
    result = varla("compare", trained, "--no-plot", "--plot", tmp_path / "plot.svg")
    assert "accuracy (eval)" not in result.stdout
    assert (tmp_path / "plot.svg").exists()


def test_runs_with_nothing_to_draw_are_still_compared(diverged, tmp_path):
    result = varla("compare", diverged[0])
    assert row(result, "second")
    assert "no plot: no run has logged 'eval' (logged: " in result.stdout
    assert refused(varla("compare", diverged[0], "--metric", "los"), "no run has logged 'los'")


def test_what_cannot_be_compared_is_refused(trained, diverged, tmp_path):
    assert refused(varla("compare", trained, tmp_path / "none"), "none holds no run")
    (tmp_path / "empty").mkdir()
    assert refused(varla("compare", tmp_path / "empty"), "empty holds no run", "nor in a folder of it")
    assert refused(varla("compare", trained / "checkpoints"), "did you mean", str(trained))
    assert refused(varla("compare", trained, trained), "given twice")
    assert refused(varla("compare", trained, "--plot", tmp_path / "plot.pdf"), ".html, .png, .svg", "plot.pdf")
    assert refused(varla("compare", trained, "--plot", trained / "record.json" / "plot.svg"), "record.json")
    assert refused(varla("compare", diverged[0], "--plot", tmp_path / "plot.svg"), "no run has logged", "loss")
    assert varla("compare").exit_code == 2


def test_damaged_record_is_refused(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "run" / "record.json").write_text("{")
    assert refused(varla("compare", tmp_path / "run"), "record.json is damaged")


def test_folders_of_the_same_name_are_told_apart_by_their_paths(trained, tmp_path):
    shutil.copytree(trained, tmp_path / trained.name)
    result = varla("compare", trained, tmp_path / trained.name)
    assert str(trained) in result.stdout
    assert str(tmp_path / trained.name) in result.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        ["--metric", "step"],
        ["--metric", ""],
        ["--metric", "foo"],
        ["--metric", "foo", "--no-plot"],
        ["--plot", "x.pdf"],
        ["--format", "xml"],
    ],
    ids=str,
)
def test_what_is_refused_is_refused_before_anything_is_printed(trained, wrong):
    result = varla("compare", trained, *wrong)
    assert refused(result, wrong[1])
    assert result.stdout == ""


def copy(run, target, *, seed, **values):
    """The run with another seed, and other values logged at its last step."""
    shutil.copytree(run, target)
    RunFolder(target).claim({**Run(run).config().to_dict(), "seed": seed})
    entries = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    entries[-1].update(values)
    (target / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return target


@pytest.fixture
def seeds(trained, tmp_path):
    """A sweep's folder: three seeds of one run, and a run with other settings."""
    folder = tmp_path / "sweep"
    for seed, accuracy in ((1, 0.2), (2, 0.4), (3, 0.9)):
        copy(trained, folder / f"vla-seed{seed}", seed=seed, eval=accuracy)
    other = copy(trained, folder / "linear-seed1", seed=1, eval=0.1)
    RunFolder(other).claim({**Run(other).config().to_dict(), "mechanism": "linear"})
    (folder / ".logs").mkdir()
    return folder


def records(result):
    assert result.exit_code == 0, result.output
    return {each["run"]: each for each in json.loads(result.stdout)}


def test_the_folder_of_a_sweep_stands_for_its_runs(seeds):
    found = records(varla("compare", seeds, "--format", "json"))
    assert list(found) == ["linear-seed1", "vla-seed1", "vla-seed2", "vla-seed3"]
    assert [each["eval"] for each in found.values()] == [0.1, 0.2, 0.4, 0.9]


def test_seeds_are_averaged(seeds):
    result = varla("compare", seeds, "--average")
    assert row(result, "vla         ")[3:6] == ["3", "4", "0.5000 ± 0.3606"]
    assert "  x vla" in [line.rstrip() for line in result.stdout.splitlines()]
    found = records(varla("compare", seeds, "--average", "--format", "json"))
    assert list(found) == ["linear-seed1", "vla"]
    assert found["vla"]["eval"] == pytest.approx(0.5)
    assert found["vla"]["eval sd"] == pytest.approx(0.13**0.5)
    assert found["vla"]["seeds"] == 3
    assert "eval sd" not in found["linear-seed1"]


def test_an_average_is_not_named_after_one_of_its_seeds(trained, tmp_path):
    for seed in (1, 2):
        copy(trained, tmp_path / "grid" / f"seed{seed}-lr0.1", seed=seed)
        copy(trained, tmp_path / "seeds" / f"seed{seed}", seed=seed)
    assert list(records(varla("compare", tmp_path / "grid", "--average", "--format", "json"))) == ["lr0.1"]
    # Nothing would be left of these names.
    assert list(records(varla("compare", tmp_path / "seeds", "--average", "--format", "json"))) == ["seed1"]


def test_csv_has_every_digit_and_nothing_else(seeds, tmp_path):
    result = varla("compare", seeds, "--format", "csv", "--plot", tmp_path / "a.svg")
    found = list(csv.DictReader(io.StringIO(result.stdout)))
    assert len(found) == 4
    assert float(found[1]["tokens/s"]) == records(varla("compare", seeds, "--format", "json"))["vla-seed1"]["tokens/s"]
    assert "a.svg" in result.stderr


def language_model(folder, seed=1, finished=True):
    """The folder of a run of train-lm, as far as a comparison reads it."""
    folder.mkdir(parents=True)
    chosen = replace(settings("text.txt"), seed=seed)
    RunFolder(folder).claim(chosen.to_dict())
    history = [{"step": step, "loss": 5.0 - seed * step, "epoch": 1.0} for step in (1, 2)]
    for step in (2, 10):
        (folder / f"checkpoint-{step}").mkdir()
    (folder / "checkpoint-2" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    (folder / "checkpoint-10" / "trainer_state.json").write_text("{")  # cut short by a kill
    scores = {"16": {"bits per byte": 2.0 * seed, "perplexity": 4.0}}
    record = {"status": "finished", "steps": 2, "parameters": 1000, "train tokens": 5, "loss": 3.0, "scores": scores}
    if finished:
        RunFolder(folder).write_record(record)
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps({"mechanisms": ["vla", "vla", "softmax"]}))
    return folder


def test_language_models_are_compared_by_bits_per_byte(tmp_path):
    language_model(tmp_path / "lms" / "a")
    language_model(tmp_path / "lms" / "b", seed=2, finished=False)
    result = varla("compare", tmp_path / "lms")
    assert result.exit_code == 0, result.output
    assert "loss" in result.stdout.splitlines()
    found = records(varla("compare", tmp_path / "lms", "--format", "json"))
    assert (found["a"]["bits/byte 16"], found["a"]["mechanism"]) == (2.0, "2 vla, 1 softmax")
    assert (found["a"]["status"], found["a"]["model"]) == ("finished", "5m")
    assert (found["b"]["steps"], found["b"]["loss"], found["b"]["status"]) == (2, 1.0, "no record")


def test_seeds_of_language_models_are_averaged(tmp_path):
    for seed in (1, 3):
        language_model(tmp_path / "lms" / f"book-s{seed}", seed=seed)
    found = records(varla("compare", tmp_path / "lms", "--average", "--format", "json"))
    assert found["book"]["bits/byte 16"] == 4.0
    assert found["book"]["seeds"] == 2


@pytest.mark.parametrize(
    "record",
    [
        '{"scores": 3}',
        '{"scores": {"512": {}}}',
        '{"scores": {"512": 3}}',
        '{"loss": "x"}',
        '{"train tokens": [1]}',
        '{"steps": true}',
    ],
)
def test_damaged_records_of_language_models_are_refused(tmp_path, record):
    folder = language_model(tmp_path / "lm")
    (folder / "record.json").write_text(record)
    assert refused(varla("compare", folder), "lm", "damaged")


def test_a_checkpoint_that_is_too_deep_is_passed_over(tmp_path):
    folder = language_model(tmp_path / "lm", finished=False)
    for file in ("checkpoint-10/trainer_state.json", "checkpoint-10/config.json"):
        (folder / file).write_text("[" * 100_000)
    assert records(varla("compare", folder, "--format", "json"))["lm"]["steps"] == 2


def test_values_that_are_no_numbers_are_not_drawn(tmp_path):
    folder = language_model(tmp_path / "lm", finished=False)
    history = [{"step": 1, "loss": "x"}, {"step": 2, "loss": 3.0}, {"step": 3, "loss": float("nan")}]
    (folder / "checkpoint-2" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert varla("compare", folder).exit_code == 0


def test_a_language_model_and_a_task_are_not_compared(trained, tmp_path):
    result = varla("compare", trained, language_model(tmp_path / "lm"))
    assert refused(result, "first is a run of `varla train`", "lm of `varla train-lm`")


def test_every_command_knows_a_run_of_the_other_kind(trained, tmp_path):
    folder = language_model(tmp_path / "lm")
    assert refused(varla("eval", folder), "`varla train-lm`", f"varla score {folder / 'model'}")
    assert refused(varla("train", "--resume", folder), f"varla train-lm --resume {folder}")
    assert refused(varla("train-lm", "--resume", trained), f"varla train --resume {trained}")
    assert refused(varla("generate", trained, "--prompt", "a"), "`varla train`", f"varla eval {trained}")


def test_losses_that_are_not_finite_are_left_out_of_averages(tmp_path):
    for seed, loss in ((1, 3.0), (2, float("nan"))):
        folder = language_model(tmp_path / "lms" / f"book-s{seed}", seed=seed)
        RunFolder(folder).write_record({**RunFolder(folder).record(), "loss": loss})
    found = records(varla("compare", tmp_path / "lms", "--format", "json"))
    assert (found["book-s1"]["loss"], found["book-s2"]["loss"]) == (3.0, None)
    found = records(varla("compare", tmp_path / "lms", "--average", "--format", "json"))
    assert (found["book"]["loss"], found["book"]["parameters"]) == (3.0, 1000)
    assert "loss sd" not in found["book"]
