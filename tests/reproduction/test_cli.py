"""`python -m reproduction`: the commands do what they say, and an error is one line that says what to do."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from reproduction import items
from reproduction.cli import app
from tests.cli.cases import refused
from tests.reproduction.report import fabricated
from tests.reproduction.test_runner import item, measure


def reproduction(*arguments):
    """The result of `python -m reproduction ARGUMENTS`: exit_code, stdout, stderr."""
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository of fabricated records, as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(items, "ITEMS", fabricated.ITEMS)
    fabricated.write(tmp_path / "reports")
    return tmp_path


def test_help_of_every_command_has_an_example():
    assert "Example: python -m reproduction" in reproduction("--help").stdout
    for command in ("list", "run", "report"):
        assert f"Example: python -m reproduction {command}" in reproduction(command, "--help").stdout


def test_a_run_prints_verdicts_and_names_what_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(items, "ITEMS", (item(measure(3)), item(measure(-1), name="bad")))
    folders = ["--reports", tmp_path / "reports", "--runs", tmp_path / "runs"]
    good = reproduction("run", "small", *folders)
    assert good.exit_code == 0
    assert "three squared is nine" in good.stdout
    assert "reproduced" in good.stdout
    bad = reproduction("run", *folders)
    assert bad.exit_code == 1
    assert "no negative numbers" in bad.stderr


def test_items_are_listed_with_claims_and_runs(folder):
    lines = reproduction("list", "--preset", "full").stdout.splitlines()
    (row,) = [[cell.strip() for cell in line.split("│")[1:-1]] for line in lines if "recall" in line]
    assert row == ["recall", "P7", "Recall", "4", "6"]
    assert "norms" not in reproduction("list", "recall").stdout


@pytest.mark.parametrize("command", ["list", "run"])
def test_unknown_items_and_presets_are_refused(folder, command):
    assert refused(reproduction(command, "recal"), "unknown item 'recal'", "did you mean 'recall'")
    assert refused(reproduction(command, "--preset", "small"), "--preset must be one of 'quick', 'full'")
    assert reproduction(command, "--presets", "full").exit_code == 2
    assert refused(reproduction("run", "--device", "tpu"), "--device must be one of cpu, cuda")


def test_the_page_is_written_and_verdicts_are_counted(folder):
    result = reproduction("report")
    assert result.exit_code == 0, result.output
    assert (folder / "runs" / "report" / "index.html").stat().st_size > 500_000
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    assert {name: int(n) for name, n in rows} == fabricated.VERDICT_COUNTS
    assert "written  runs/report/index.html" in result.stdout
    assert not (folder / "docs").exists()


def test_docs_are_written_when_asked_for(folder):
    (folder / "docs").mkdir()
    result = reproduction("report", "--docs", "--out", "page.html")
    assert result.exit_code == 0, result.output
    documents = ("README.md", "recall.md", "norms.md", "figures/recall.svg")
    for name in ("page.html", *(f"docs/reproduction/{each}" for each in documents)):
        assert f"written  {name}" in result.stdout
        assert (folder / name).exists()


def test_what_is_missing_or_damaged_is_named(folder):
    assert refused(
        reproduction("report", "--reports", "nowhere"), "no records in nowhere", "`python -m reproduction run`"
    )
    assert refused(reproduction("report", "--out", "page.pdf"), ".html", "page.pdf")
    assert refused(reproduction("report", "--docs"), "no docs/", "root of the repository")
    assert not (folder / "docs").exists()
    (folder / "reports" / "full" / "recall.json").write_text("{")
    assert refused(reproduction("report"), "recall.json is damaged")


def test_as_a_process_it_loads_nothing_heavy_before_it_must(request):
    script = (
        "import runpy, sys; sys.argv = ['reproduction', '--help']\n"
        "try: runpy.run_module('reproduction', run_name='__main__')\n"
        "finally: print('torch' in sys.modules, file=sys.stderr)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=request.config.rootpath, capture_output=True, text=True, check=True
    )
    assert "Usage: python -m reproduction" in result.stdout
    assert result.stderr.strip() == "False"


@pytest.mark.parametrize("missing", ["varla", "typer"])
def test_without_what_it_needs_it_says_so_in_a_line(missing, request):
    script = f"""
import runpy, sys
class Missing:
    def find_spec(name, *_):
        if name == {missing!r}:
            raise ModuleNotFoundError(name=name)
sys.meta_path.insert(0, Missing)
runpy.run_module("reproduction", run_name="__main__")
"""
    result = subprocess.run(
        [sys.executable, "-c", script], cwd=request.config.rootpath, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stderr.strip() == f"error: the reproduction needs {missing}: pip install -e '.[lab]' in this folder"
