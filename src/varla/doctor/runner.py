"""Carries out checks in processes of their own: a kernel that kills its process, or never ends, is found and named."""

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from multiprocessing import connection, get_context
from typing import Any

import torch

from varla.doctor.checks import Check, Outcome, run

LIMIT = 300  # seconds for a check: kernels that were never compiled take most of a minute on few cores
MOST = 8  # processes; each holds PyTorch, and on a GPU a context

Done = Callable[[Outcome], None]


def run_here(checks: Sequence[Check], done: Done) -> None:
    """Carry out all checks in this process."""
    for check in checks:
        done(run(check))


def run_apart(checks: Sequence[Check], done: Done, *, limit: float = LIMIT) -> None:
    """Carry out all checks, as many at a time as PyTorch has threads. `done` gets the outcomes, in any order."""
    groups = deque(deque(each) for _, each in groupby(checks, lambda check: (check.device, check.name)))
    workers = [_Worker(limit) for _ in range(max(1, min(MOST, torch.get_num_threads(), len(groups))))]
    try:
        busy = [worker for worker in workers if worker.begin(groups)]
        while busy:
            connection.wait([worker.pipe for worker in busy], timeout=1)
            for worker in busy:
                outcome = worker.finished()
                if outcome is not None:
                    done(outcome)
                    worker.begin(groups)
            busy = [worker for worker in busy if worker.check is not None]
    finally:
        for worker in workers:
            worker.dismiss()


class _Worker:
    """One process at a time, with one check at a time. A new process replaces one that died."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.process: Any = None
        self.pipe: Any = None
        self.check: Check | None = None
        self.rest: deque[Check] = deque()  # of its group: they share a reference and compiled kernels

    def begin(self, groups: deque[deque[Check]]) -> bool:
        """Start the next check, if there is one."""
        self.check = None
        if not self.rest and groups:
            self.rest = groups.popleft()
        if not self.rest:
            return False
        self.check, self.since = self.rest.popleft(), time.monotonic()
        try:
            self._connect().send(self.check)
        except OSError:  # the process died after its last check
            self.dismiss()
            self._connect().send(self.check)
        return True

    def _connect(self) -> Any:
        if self.process is None:
            context = get_context("spawn")  # a fork would share CUDA and OpenMP with this process, which both forbid
            self.pipe, theirs = context.Pipe()
            self.process = context.Process(target=serve, args=(theirs,), daemon=True)
            self.process.start()
            theirs.close()
        return self.pipe

    def finished(self) -> Outcome | None:
        """The outcome of its check; None while there is none."""
        assert self.check is not None
        passed = time.monotonic() - self.since
        if not self.pipe.poll():
            if passed <= self.limit:
                return None
            self.dismiss()
            return Outcome(self.check, message=f"no result after {self.limit:g} s", seconds=passed)
        try:
            outcome, lost = self.pipe.recv()
        except (EOFError, OSError):
            self.process.join(5)
            reason = _reason(self.process.exitcode)
            self.dismiss()
            return Outcome(self.check, message=f"its process died ({reason})", seconds=passed)
        if lost:
            self.dismiss()
        found: Outcome = outcome
        return found

    def dismiss(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None


def serve(pipe: Any) -> None:
    """What a process does: one check after the other. It answers (outcome, whether the GPU can no longer be used)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # compilers print there
        os.dup2(nowhere, stream)
    torch.set_num_threads(1)  # the tensors are small, and other processes have the other cores
    while True:
        try:
            outcome = run(pipe.recv())
        except EOFError:
            return
        failed = outcome.message is not None and outcome.check.device != "cpu"
        pipe.send((outcome, failed and _lost(outcome.check.device)))


def _lost(device: str) -> bool:
    """Whether an illegal memory access, or the like, ended the use of the GPU in this process."""
    try:
        torch.cuda.synchronize(device)
    except Exception:
        return True
    return False


def _reason(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    return signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
