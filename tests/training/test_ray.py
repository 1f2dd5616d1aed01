"""Sweeps on a Ray cluster of two nodes, one of which is killed. `make ray` installs Ray and runs these tests."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from tests.training.test_sweep import BASE, losses
from varla.training import Run
from varla.training.sweep import expand, plan, run

ray = pytest.importorskip("ray")
from ray.cluster_utils import Cluster  # noqa: E402

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def cluster():
    """A head that runs nothing; tests add nodes. Workers find this clone's package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture
def nodes(cluster):
    """Two nodes of one processor each."""
    found = [cluster.add_node(num_cpus=1) for _ in range(2)]
    cluster.wait_for_nodes()
    yield found
    ray.shutdown()
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node)


def lengthened(steps):
    return {**BASE, "train": {**BASE["train"], "steps": steps, "checkpoint_every": 25}}


def test_a_node_that_dies_loses_nothing(cluster, nodes, tmp_path):
    """Eight runs; a node is killed in the middle. All finish, each once, with the numbers of a local sweep."""
    base, grid = lengthened(800), {"mechanism": ["vla", "deltanet"], "seed": [1, 2, 3, 4]}
    jobs = expand(base, grid, tmp_path / "ray")
    killed = []

    def watch(jobs):
        running = [job for job in jobs if job.state == "running" and Run(job.folder).metrics()]
        if not killed and len(running) == 2 and sum(job.state == "finished" for job in jobs) >= 2:
            cluster.remove_node(nodes[0], allow_graceful=False)
            killed.extend(running)

    run(jobs, device="cpu", on=cluster.address, watch=watch)
    assert killed
    assert [job.state for job in jobs] == ["finished"] * 8
    assert sum(job.losses for job in jobs) >= 1
    alone = expand(base, grid, tmp_path / "local")
    run(alone, workers=2, device="cpu")
    for job, other in zip(jobs, alone, strict=True):
        found = Run(job.folder)
        assert found.record()["status"] == "finished"
        assert [entry["step"] for entry in found.metrics()] == list(range(1, 801))
        assert losses(found) == losses(Run(other.folder))
    again = expand(base, grid, tmp_path / "ray")
    plan(again)
    assert all(job.skipped for job in again)


def test_the_command_stops_saves_and_goes_on(cluster, nodes, tmp_path):
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump({"base": lengthened(100_000), "grid": {"seed": [1, 2, 3]}}))
    command = [sys.executable, "-m", "varla", "sweep", tmp_path / "grid.yaml", "--out", tmp_path / "out"]
    command += ["--device", "cpu", "--on", cluster.address]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    runs = [Run(tmp_path / "out" / f"seed{seed}") for seed in (1, 2)]
    try:
        deadline = time.monotonic() + 120
        while not all(each.metrics() for each in runs) and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, stderr
    assert "0 of 3 runs done; resume with the same command" in stderr
    for each in runs:
        assert each.record()["status"] == "interrupted"
        assert each.record()["steps"] == each.metrics()[-1]["step"]


@pytest.mark.parametrize(
    ("on", "reason"),
    [("127.0.0.1:1", "refused"), ("ray://127.0.0.1:1", "refused"), ("rey", "it must be ray, HOST:PORT")],
)
def test_an_address_without_a_cluster_is_named(tmp_path, on, reason):
    jobs = expand(BASE, {"seed": [1]}, tmp_path)
    with pytest.raises(ValueError, match=f"--on {on}: there is no Ray cluster at this address .*{reason}"):
        run(jobs, device="cpu", on=on)
