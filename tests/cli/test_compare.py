"""varla compare: a row a run, from records alone, and plots that are really written."""

import shutil

import pytest

from tests.cli.cases import refused, varla
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
    ("name", "start"), [("a.png", b"\x89PNG\r\n\x1a\n"), ("b.svg", b"<svg"), ("c/d.html", b"<!DOCTYPE html>")]
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
    assert plot[1].startswith("       1 |")
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
