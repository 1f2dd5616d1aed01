"""Processes that train one run after the other: PyTorch is imported once in each, not once for every run.

An order is a line of JSON on the worker's standard input; how it ended comes back as a line with an exit code, through
a pipe of its own, since everything printed goes to the log of the run.
"""

import contextlib
import gc
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from varla.outcomes import DIVERGED, EXIT_CODES, FAILED, FINISHED, INTERRUPTED
from varla.training.config import RunConfig, from_dict
from varla.training.loop import Interrupted, train
from varla.training.run import RunError
from varla.training.update import Diverged


class Worker:
    """One process at a time, begun anew after one that died or failed."""

    def __init__(self, environment: Mapping[str, str], device: str | None):
        """Nothing is started yet. `environment`: of its processes; `device`: as for `train`."""
        self.environment, self.device = environment, device
        self.process: subprocess.Popen[bytes] | None = None
        self.replies = -1
        self.unread = b""

    def begin(self, config: RunConfig, folder: Path, log: Path, *, resume: bool) -> None:
        """Give it a run. One that cannot be logged is a RunError."""
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
        except OSError as error:
            raise RunError(f"{log.parent} cannot be written to: {error.strerror or error}") from error
        order = {"config": config.to_dict(), "folder": str(folder), "log": str(log), "resume": resume}
        line = json.dumps({**order, "device": self.device}).encode() + b"\n"
        try:
            self._send(line)
        except BrokenPipeError:  # it died with nothing to do
            self.dismiss()
            self._send(line)

    def _send(self, line: bytes) -> None:
        process = self._process()
        assert process.stdin is not None  # it was opened as a pipe
        process.stdin.write(line)
        process.stdin.flush()

    def ended(self) -> int | None:
        """The exit code of the run it was given, None while it goes on. Negative: the process was killed."""
        died = self.process is not None and self.process.poll() is not None  # before reading: the last word counts
        with contextlib.suppress(BlockingIOError):
            self.unread += os.read(self.replies, 64)
        line, newline, self.unread = self.unread.partition(b"\n")
        if newline:
            code = int(line)
            if code == EXIT_CODES[FAILED]:  # it may have left the device in any state
                self.dismiss()
            return code
        self.unread = line
        if self.process is None or not died:
            return None
        code = self.process.returncode
        self.dismiss()
        return code or EXIT_CODES[FAILED]

    def ask_to_save(self) -> None:
        """Have the run under way stop at its next step."""
        if self.process is not None:
            self.process.terminate()

    def wait(self, seconds: float) -> int:
        """The exit code of the run under way, after so long at the most."""
        deadline = time.monotonic() + max(0.0, seconds)
        while (code := self.ended()) is None:
            if time.monotonic() > deadline:
                assert self.process is not None
                self.process.kill()
                self.process.wait()
            time.sleep(0.02)
        return code

    def dismiss(self) -> None:
        """End the process, which has nothing left to do."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            self.process.wait(5.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.replies)
        self.process, self.replies, self.unread = None, -1, b""

    def _process(self) -> "subprocess.Popen[bytes]":
        if self.process is not None and self.process.poll() is not None:  # killed while it had nothing to do
            self.dismiss()
        if self.process is None:
            self.replies, there = os.pipe()
            os.set_blocking(self.replies, False)
            self.process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({there})"],
                env=dict(self.environment),
                stdin=subprocess.PIPE,
                pass_fds=[there],
            )
            os.close(there)
        return self.process


def serve(replies: int) -> None:
    """A worker process: runs as they come, until there are no more."""
    for line in sys.stdin:
        order = json.loads(line)
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        code = work(order)
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        os.write(replies, f"{code}\n".encode())


def work(order: Mapping[str, Any]) -> int:
    """One run; returns how it ended as an exit code."""
    try:
        train(from_dict(order["config"]), order["folder"], resume=order["resume"], device=order["device"])
    except Diverged:
        return EXIT_CODES[DIVERGED]  # the record says where
    except Interrupted as error:
        print(error, file=sys.stderr)
        return EXIT_CODES[INTERRUPTED]
    except Exception:
        traceback.print_exc()
        return EXIT_CODES[FAILED]
    return EXIT_CODES[FINISHED]
