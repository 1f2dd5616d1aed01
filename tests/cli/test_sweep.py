"""varla sweep: the table at the end, exit codes, refusals. What a sweep does is tested in tests/training."""

import io

import pytest
from rich.console import Console

from tests.cli.cases import TINY, refused, varla, write
from varla.cli import sweep as command
from varla.training import sweep as sweeps
from varla.training.sweep import Job


def pretend(*ends):
    """A stand-in for the workers: the waiting jobs end in these states, in order."""

    def run(jobs, *, workers, device, on, watch):
        for state in ("running", *ends):
            for i, job in enumerate(job for job in jobs if not job.skipped):
                job.state = state if state == "running" else ends[i]
                job.note = "out of memory" if job.state == "failed" else ""
            watch(jobs)

    return run


@pytest.fixture
def grid(tmp_path):
    return write(tmp_path / "grid.yaml", {"base": TINY, "grid": {"mechanism": ["vla", "linear"], "seed": [1]}})


def test_all_finished_is_0(grid, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "run", pretend("finished", "diverged"))
    result = varla("sweep", grid, "--out", tmp_path / "out")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.startswith(("vla-seed1", "linear-seed1"))]
    assert [line.split()[1] for line in lines] == ["running", "running", "finished", "diverged"]
    assert "2 runs: 1 finished, 1 diverged" in result.stdout


def test_any_failed_is_1_and_named_with_its_reason(grid, tmp_path, monkeypatch):
    monkeypatch.setattr(sweeps, "run", pretend("failed", "finished"))
    result = varla("sweep", grid, "--out", tmp_path / "out")
    assert refused(result, "vla-seed1 failed: out of memory", ".logs/vla-seed1.log", code=1)


def test_default_folder_is_named_after_the_grid(grid, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sweeps, "run", pretend("finished", "finished"))
    assert "sweep    runs/grid:" in varla("sweep", grid).stdout


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"base": {}}, ["needs a grid"]),
        ({"bsae": {}, "grid": {"seed": [1]}}, ["did you mean 'base'"]),
        ({"grid": {"seed": 1}}, ["grid.seed", "list"]),
        ({"grid": {"sede": [1]}}, ["run sede1: unknown key 'sede'"]),
        ({"grid": {"task.n": [2, 500]}}, ["run n500: n must be at most"]),
        ({"grid": {3: [1]}}, ["must have names as keys, got 3"]),
        ({"grid": {"layer.gain": ["unit", "rls"]}}, ["run gainrls: gain must be one of"]),
    ],
)
def test_bad_grids_are_refused(tmp_path, values, words):
    assert refused(varla("sweep", write(tmp_path / "grid.yaml", values), "--out", tmp_path / "out"), *words)
    assert not (tmp_path / "out").exists()


def test_missing_grid_folder_and_jobs(grid, tmp_path):
    assert refused(varla("sweep", tmp_path / "none.yaml"), "none.yaml")
    (tmp_path / "file").write_text("")
    assert refused(varla("sweep", grid, "--out", tmp_path / "file" / "out"), "cannot be written")
    assert varla("sweep", grid, "--jobs", 0).exit_code == 2


def test_live_table_fits_the_terminal(tmp_path, monkeypatch):
    config = sweeps.from_dict(TINY)
    jobs = [Job(f"run{i}", tmp_path / f"run{i}", {}, config) for i in range(50)]
    jobs[30].state = "running"
    screen = io.StringIO()
    monkeypatch.setattr(command, "console", lambda: Console(file=screen, force_terminal=True, width=100, height=20))
    with command.progress() as show:
        show(jobs)
    assert "run30" in screen.getvalue()
    assert "run31" not in screen.getvalue()
    assert "50 runs: 49 waiting, 1 running" in screen.getvalue()
