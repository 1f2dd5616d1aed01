"""The command as a whole: help with examples, version, exit codes, and no traceback for what a person can mend."""

import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

import varla as package
from tests.cli.cases import refused, varla
from varla.cli import errors, main
from varla.training import Diverged, Interrupted, RunError

NAMES = [each.name or each.callback.__name__ for each in main.app.registered_commands if not each.hidden]
NAMES += [each.name for each in main.app.registered_groups]


def test_all_commands_are_there():
    assert {"info", "mechanisms", "models", "tasks", "train", "eval", "compare", "sweep"} <= set(NAMES)


@pytest.mark.parametrize("command", [*NAMES, "tasks show"])
def test_help_of_every_command_has_an_example(command):
    result = varla(*command.split(), "--help")
    assert result.exit_code == 0
    assert f"Example: varla {command}" in result.stdout


def test_help_names_every_command():
    result = varla("--help")
    assert all(f" {name} " in result.stdout for name in NAMES)
    assert "Example: varla train" in result.stdout


def test_version():
    assert varla("--version").stdout.strip() == package.__version__


@pytest.mark.parametrize("command", [[], ["train"]], ids=["varla", "varla train"])
def test_as_a_process_help_loads_nothing_heavy(command):
    script = (
        "import sys; from varla.cli import app\ntry: app()\nfinally: print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, *command, "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: varla" in result.stdout
    loaded = set(result.stderr.split())
    assert "varla.cli.train" in loaded
    assert not loaded & {
        "torch",
        "numpy",
        "accelerate",
        "altair",
        "yaml",
        "tensorboard",
        "transformers",
        "varla.training",
        "varla.layers",
    }


@pytest.mark.parametrize("module", ["varla", "varla.cli"])
def test_the_package_can_be_run_as_the_command(module):
    command = [sys.executable, "-m", module]
    result = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == package.__version__
    refused = subprocess.run([*command, "compare", "nowhere"], capture_output=True, text=True)  # without loading torch
    assert (refused.returncode, refused.stderr.count("error: ")) == (2, 1)


def test_unknown_command_and_option_are_usage_errors():
    assert varla("trian").exit_code == 2
    assert varla("train", "--stepz", "3").exit_code == 2


@pytest.mark.parametrize("arguments", ["reproduce", "report --docs", "reproduce rls --preset full", "report --help"])
def test_commands_of_the_reproduction_name_the_new_ones(arguments):
    assert refused(varla(*arguments.split()), "python -m reproduction run | report")


def raising(error):
    app = typer.Typer(cls=errors.Commands)

    @app.callback()
    def root(debug: bool = False) -> None:
        pass

    @app.command()
    def fail() -> None:
        raise error

    return app


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ValueError("bad value"), 2),
        (TypeError("bad type"), 2),
        (RunError("bad folder"), 2),
        (FileNotFoundError(2, "No such file", "there.yaml"), 2),
        (ModuleNotFoundError("No module named 'altair'", name="altair"), 2),
        (Diverged("diverged at step 3"), 3),
        (OSError(28, "No space left on device", "here.json"), 2),
        (BrokenPipeError(32, "Broken pipe"), 2),
        (type("SafetensorError", (Exception,), {})("no space left"), 2),
        (MemoryError(), 2),
    ],
    ids=lambda each: type(each).__name__,
)
def test_errors_are_a_line_and_an_exit_code(error, code):
    result = CliRunner().invoke(raising(error), ["fail"])
    assert refused(
        result, getattr(error, "filename", None) or getattr(error, "strerror", None) or str(error), code=code
    )


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Interrupted("stopped; resume with: varla train --resume x")])
def test_ctrl_c_is_130_and_no_error(stop):
    result = CliRunner().invoke(raising(stop), ["fail"])
    assert result.exit_code == 130
    assert result.stderr == f"{stop if str(stop) else 'interrupted'}\n"


@pytest.mark.parametrize("error", [RuntimeError("a bug"), KeyError("a bug"), ModuleNotFoundError("x", name="varla.x")])
def test_what_nobody_foresaw_is_raised(error):
    assert CliRunner().invoke(raising(error), ["fail"]).exception is error


def test_traceback_on_request():
    error = ValueError("bad value")
    assert CliRunner().invoke(raising(error), ["--debug", "fail"]).exception is error


@pytest.mark.parametrize("arguments", [["--debug"], ["--traceback"], []])
def test_debug_may_be_set_by_the_environment(arguments, monkeypatch, tmp_path):
    if not arguments:
        monkeypatch.setenv("VARLA_DEBUG", "1")
    result = varla(*arguments, "train", "--resume", tmp_path)
    assert isinstance(result.exception, RunError)
