"""Reports: which names are allowed, what is said without wandb, and one run of wandb's for a run's folder."""

import sys
from types import ModuleType

import pytest

from tests.runs import fake_wandb
from varla.runs.folder import RunError, read_json
from varla.runs.reporting import check_wandb, report_names, start_wandb, wandb_run


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("tensorboard", ["tensorboard"]),
        ("none", []),
        ([], []),
        (["wandb", "tensorboard"], ["wandb", "tensorboard"]),
    ],
)
def test_one_name_none_or_a_list(value, names):
    assert report_names("train.report_to", value) == names


@pytest.mark.parametrize("value", ["comet", "Wandb", ["none"], ["wandb", 3]])
def test_other_names_are_refused(value):
    with pytest.raises(ValueError, match=r"train\.report_to must be one of 'tensorboard', 'wandb'"):
        report_names("train.report_to", value)


def test_without_wandb_the_error_says_how_to_install_it(monkeypatch):
    fake_wandb.install(monkeypatch)
    check_wandb("train.report_to")
    for found in (None, ModuleType("wandb")):  # not installed; a folder of that name
        monkeypatch.setitem(sys.modules, "wandb", found)
        with pytest.raises(ValueError, match=r"^train\.report_to asks for wandb, .* not installed: pip install wandb$"):
            check_wandb("train.report_to")


def test_a_wandb_that_lacks_a_package_says_which(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    (tmp_path / "wandb.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="wandb, which cannot be imported: No module named 'no_such_package'"):
        check_wandb("train.report_to")


def test_a_folder_keeps_its_run(monkeypatch, tmp_path):
    runs = fake_wandb.install(monkeypatch)
    (tmp_path / "other").mkdir()
    for folder in (tmp_path, tmp_path, tmp_path / "other"):
        start_wandb(folder, {"seed": 1})
    first, again, other = (run.given for run in runs)
    assert first == again
    assert first["id"] == read_json(tmp_path / "wandb.json")["id"] != other["id"]
    assert (first["resume"], first["config"], first["dir"]) == ("allow", {"seed": 1}, str(tmp_path))
    assert (first["project"], first["name"]) == ("varla", tmp_path.name)
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    start_wandb(tmp_path, {}, "called")
    assert (runs[-1].given["project"], runs[-1].given["name"]) == ("mine", "called")
    (tmp_path / "wandb.json").write_text('{"id": 3}')
    with pytest.raises(RunError, match="`id` must be text, got 3"):
        start_wandb(tmp_path, {})


def test_what_wandb_refuses_is_one_line_that_names_it(monkeypatch, tmp_path):
    fake_wandb.install(monkeypatch, refuse="api_key not configured\nrun wandb login")
    with pytest.raises(ValueError, match=r"^wandb cannot begin: api_key not configured run wandb login \(WANDB_MODE="):
        start_wandb(tmp_path, {})


def test_a_run_that_did_not_finish_says_so(monkeypatch, tmp_path):
    runs = fake_wandb.install(monkeypatch)
    with wandb_run(tmp_path, {}):
        pass
    with pytest.raises(RuntimeError), wandb_run(tmp_path, {}):
        raise RuntimeError
    assert [run.exit_code for run in runs] == [0, 1]
