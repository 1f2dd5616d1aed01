"""`varla train-lm` as a person uses it: a file of settings, changes to it, going on, and mistakes."""

import yaml
from typer.testing import CliRunner

from tests.lm.cases import settings, write_text
from varla.cli.main import app


def varla(*arguments):
    return CliRunner().invoke(app, ["train-lm", *map(str, arguments)])


def test_from_a_file_and_on(tmp_path):
    text = write_text(tmp_path / "text")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(settings(text).to_dict()))
    done = varla(tmp_path / "config.yaml", "--set", "train.max_steps=2", "--out", tmp_path / "run")
    assert done.exit_code == 0, done.output
    assert "parameters, 2 steps" in done.stdout
    assert "bits per byte" in done.stdout
    again = varla("--resume", tmp_path / "run")
    assert again.exit_code == 0, again.output
    assert "parameters, 2 steps" in again.stdout


def test_mistakes_are_one_line(tmp_path):
    text = write_text(tmp_path / "text")
    good = ["--set", f"data.train={text}", "--out", tmp_path / "run"]
    for arguments, message in [
        (["--set", f"data.train={text}"], "--out is needed"),
        (["--out", tmp_path / "run"], "data.train must name text"),
        ([*good, "--resume", tmp_path / "run"], "--resume uses the run's own settings"),
        (["--resume", tmp_path / "none"], "holds no run"),
        ([*good, "--set", "model.preset=7b"], "unknown preset '7b'"),
        ([*good, "--set", "tokenizer=nowhere"], "tokenizer 'nowhere' is neither"),
        ([*good, "--set", "data.train=nothing/*.txt"], "no file matches 'nothing/*.txt'"),
        ([*good, "--set", "train.lr=3"], "unknown key 'train.lr'"),
        ([*good, "--set", "model.mechanisms=vlaa"], "unknown mechanism 'vlaa'"),
    ]:
        done = varla(*arguments)
        assert done.exit_code == 2, (arguments, done.output)
        assert message in done.stderr.replace("\n", " "), (arguments, done.stderr)
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "run" / "config.yaml").exists()


def test_a_reader_that_leaves_ends_the_run_with_a_word(tmp_path, monkeypatch):
    def leave(*_, **__):
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("varla.lm.training.train", leave)
    done = varla("--set", "data.train=a.txt", "--out", tmp_path / "run")
    assert done.exit_code == 130
    assert f"varla train-lm --resume {tmp_path / 'run'}" in done.stderr
