"""Workers of a sweep on a Ray cluster: each trains on the node that Ray gives it.

On its node, an actor keeps a `Worker`, as a sweep on one machine does. If the node dies, the sweep gives the run to
another actor, which continues from the newest checkpoint. So the runs' folder must be on storage that all nodes share.
"""

import contextlib
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

from varla.runs.folder import RunError
from varla.training.config import RunConfig
from varla.training.run import Run
from varla.training.workers import Lost, Worker

NEEDED = 'it needs Ray: pip install "varla[ray]", or ".[ray]" in a clone'
RELEASED = 120.0  # seconds until the processes of a node that died must have let go of a run's folder
ANSWER = 30.0  # seconds that an idle actor has to answer


class Cluster:
    """A connection to a Ray cluster, closed at the end if it was made here."""

    def __init__(self, on: str, device: str | None):
        """`on`: "ray" for RAY_ADDRESS, the cluster of this machine, or a new one on it; else an address, "ray://...".

        `device`: as for `train`. Without "cpu", a worker gets a GPU if any node has one.
        """
        try:
            import ray
        except ImportError:
            raise ValueError(f"--on {on}: {NEEDED}") from None
        self.ray, self.device = ray, device
        self.ours = not ray.is_initialized()
        if self.ours:
            try:
                _reach(on)
                ray.init(address=None if on == "ray" else on, logging_level="error", log_to_driver=False)
            except (OSError, ValueError, RuntimeError) as error:
                reason = str(error).split("\n", 1)[0]
                raise ValueError(f"--on {on}: there is no Ray cluster at this address ({reason})") from error
        has = ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(has.get("GPU", 0))
        self.needs = {"num_cpus": 1, "num_gpus": 1 if gpus else 0}
        self.room = max(1, gpus or int(has.get("CPU", 1)))

    def workers(self, count: int) -> list["RayWorker"]:
        """So many workers. Nothing is started yet."""
        return [RayWorker(self) for _ in range(count)]

    def actor(self) -> Any:
        """A new actor. Ray places it once a node has room."""
        made = self.ray.remote(max_restarts=0, max_task_retries=0, **self.needs)(OnNode)
        return made.remote(self.device)

    def close(self) -> None:
        """Part from the cluster."""
        if self.ours:
            self.ray.shutdown()


def _reach(on: str) -> None:
    """Raise OSError or ValueError if nothing listens at an address: Ray would try for minutes."""
    if on in ("ray", "auto"):
        return
    host, _, port = on.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("it must be ray, HOST:PORT or ray://HOST:PORT")
    socket.create_connection((host, int(port)), timeout=ANSWER).close()


class OnNode:
    """The actor: a worker on this node, in the environment that Ray gave (its GPU, its threads)."""

    def __init__(self, device: str | None):
        """Nothing is started yet."""
        self.worker = Worker(dict(os.environ), device)

    def begin(self, config: RunConfig, folder: str, log: str, resume: bool, taken_over: bool) -> None:
        """See Worker. Processes of the node that died may still hold a run that is taken over."""
        deadline, run = time.monotonic() + RELEASED, Run(Path(folder))
        while taken_over:
            try:
                with run.lock():
                    taken_over, resume = False, run.config_file.exists()
            except RunError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.5)
        self.worker.begin(config, Path(folder), Path(log), resume=resume)

    def ended(self) -> int | None:
        """See Worker."""
        return self.worker.ended()

    def ask_to_save(self) -> None:
        """See Worker."""
        self.worker.ask_to_save()

    def dismiss(self) -> None:
        """See Worker."""
        self.worker.dismiss()


class RayWorker:
    """A `Worker` on some node. No call but `dismiss` waits for the cluster."""

    def __init__(self, cluster: Cluster):
        """Nothing is started yet."""
        self.cluster = cluster
        self.actor: Any = None
        self.asked: list[Any] = []  # calls whose answers are still to come

    def begin(self, config: RunConfig, folder: Path, log: Path, *, resume: bool, taken_over: bool = False) -> None:
        """Give it a run. If its log cannot be written, `ended` raises RunError."""
        if self.actor is None:
            self.actor = self.cluster.actor()
        self.asked = [self.actor.begin.remote(config, str(folder.resolve()), str(log.resolve()), resume, taken_over)]

    def ended(self) -> int | None:
        """The exit code of its run, or None. Raises Lost if its node died."""
        ray = self.cluster.ray
        if self.actor is None:
            raise Lost("its actor was dismissed")
        if not self.asked:
            self.asked = [self.actor.ended.remote()]
        ready, _ = ray.wait(self.asked[:1], timeout=0)
        if not ready:
            return None
        del self.asked[0]
        try:
            found: int | None = ray.get(ready[0])
        except ray.exceptions.RayTaskError as error:
            raise error.as_instanceof_cause() from None
        except ray.exceptions.RayError as error:
            self.forget()
            raise Lost(f"its node died ({type(error).__name__})") from error
        return found

    def ask_to_save(self) -> None:
        """Stop the current run at its next step."""
        if self.actor is not None:
            self.actor.ask_to_save.remote()

    def wait(self, seconds: float) -> int:
        """The exit code of the current run. The actor is killed after `seconds`."""
        deadline = time.monotonic() + max(0.0, seconds)
        try:
            while (code := self.ended()) is None:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
        except Lost:
            code = None
        if code is None:
            self.forget()
            return -signal.SIGKILL
        return code

    def dismiss(self) -> None:
        """End the actor and its idle process."""
        if self.actor is not None:
            with contextlib.suppress(self.cluster.ray.exceptions.RayError):
                self.cluster.ray.get(self.actor.dismiss.remote(), timeout=ANSWER)
            self.forget()

    def forget(self) -> None:
        """Kill the actor, if it lives, and forget it. Its worker saves and ends when the actor's pipe closes."""
        actor, self.actor, self.asked = self.actor, None, []
        with contextlib.suppress(self.cluster.ray.exceptions.RayError, ValueError):
            self.cluster.ray.kill(actor)
