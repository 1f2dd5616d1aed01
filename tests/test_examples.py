"""The script for SLURM, with programs that say what they were given in the place of SLURM's."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "examples" / "slurm.sh"


@pytest.fixture
def submit(tmp_path):
    """Runs the script as a job on two nodes."""
    for name, does in (("srun", 'echo "$@"'), ("scontrol", 'printf "one\\ntwo\\n"')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{does}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_NODELIST": "[one-two]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "17"}

    def run(*arguments):
        environment = {**os.environ, **job, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
        return subprocess.run(["bash", SCRIPT, *arguments], env=environment, capture_output=True, text=True)

    return run


@pytest.mark.parametrize(
    ("given", "started"),
    [(["train-lm", "a b.yaml"], "-m varla train-lm a b.yaml"), (["program.py", "--x"], "program.py --x")],
)
def test_torchrun_is_started_on_all_nodes(submit, given, started):
    done = submit(*given)
    assert done.returncode == 0, done.stderr
    nodes = "--nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint one:29500 --rdzv-id 17"
    assert done.stdout == f"torchrun {nodes} {started}\n"


def test_without_a_program_it_says_what_is_missing(submit):
    done = submit()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: give a command of varla")
