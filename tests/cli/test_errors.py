"""A line for what varla refuses, a hint for what it did not foresee, and the traceback for whoever asks."""

import json

import pytest
from typer.testing import CliRunner

from varla.arguments import check_count
from varla.cli.errors import doubt
from varla.cli.main import app


def error_of(function, *arguments):
    with pytest.raises((ValueError, TypeError)) as caught:
        function(*arguments)
    return caught.value


def test_a_check_of_ours_leaves_no_doubt():
    assert doubt(error_of(check_count, "steps", -1)) == ""
    assert doubt(ValueError("never raised")) == ""


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(json.loads, ["{"]), (int, ["x"]), (sum, [3]), (check_count, [])],
    ids=["a library's", "Python's", "Python's type", "a wrong call of ours"],
)
def test_anything_else_may_be_a_bug(function, arguments):
    assert "VARLA_DEBUG=1" in doubt(error_of(function, *arguments))


def test_the_command_line(monkeypatch):
    command = ["train", "--set", "train.steps=-1"]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, "VARLA_DEBUG" in done.stderr) == (2, False)
    monkeypatch.setattr("varla.training.from_dict", lambda values: values.steps)  # a bug, but not of these types
    assert isinstance(CliRunner().invoke(app, command).exception, AttributeError)
    monkeypatch.setattr("varla.training.from_dict", lambda values: int("bug"))
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, "VARLA_DEBUG=1" in done.stderr) == (2, True)
    for switch, variable in ((["--debug"], ""), ([], "1")):
        monkeypatch.setenv("VARLA_DEBUG", variable or "0")
        assert isinstance(CliRunner().invoke(app, [*switch, *command]).exception, ValueError)
