"""Processes that train one run after another: each imports PyTorch once, not once per run.

An order is a line of JSON on the worker's standard input. The exit code comes back as a line through a separate pipe,
since everything printed goes to the log of the run.
"""

import contextlib
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from varla.runs.folder import RunError
from varla.runs.outcomes import EXIT_CODES, FAILED, FINISHED, Diverged, Interrupted
from varla.training.config import RunConfig, from_dict
from varla.training.loop import train


class Lost(Exception):
    """A worker is gone with its node. Its run can be continued by another."""


class Worker:
    """One process at a time. A new one replaces one that died or failed."""

    def __init__(self, environment: Mapping[str, str], device: str | None):
        """Nothing is started yet. `environment`: for its processes; `device`: as for `train`."""
        self.environment, self.device = environment, device
        self.process: subprocess.Popen[bytes] | None = None
        self.replies = -1
        self.unread = b""

    def begin(self, config: RunConfig, folder: Path, log: Path, *, resume: bool, taken_over: bool = False) -> None:
        """Give it a run. Raises RunError if its log cannot be written. `taken_over`: from a worker that is lost."""
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
        except OSError as error:
            raise RunError(f"{log.parent} cannot be written to: {error.strerror or error}") from error
        order = {"config": config.to_dict(), "folder": str(folder), "log": str(log), "resume": resume}
        line = json.dumps({**order, "device": self.device}).encode() + b"\n"
        try:
            self._send(line)
        except BrokenPipeError:  # the process died while it was idle
            self.dismiss()
            self._send(line)

    def _send(self, line: bytes) -> None:
        process = self._process()
        assert process.stdin is not None  # it was opened as a pipe
        process.stdin.write(line)
        process.stdin.flush()

    def ended(self) -> int | None:
        """The exit code of its run; None while it trains, negative if the process was killed."""
        died = self.process is not None and self.process.poll() is not None  # before reading, so that no reply is lost
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
        """Stop the current run at its next step."""
        if self.process is not None:
            self.process.terminate()

    def wait(self, seconds: float) -> int:
        """The exit code of the current run. The process is killed after `seconds`."""
        deadline = time.monotonic() + max(0.0, seconds)
        while (code := self.ended()) is None:
            if time.monotonic() > deadline:
                assert self.process is not None
                self.process.kill()
                self.process.wait()
            time.sleep(0.02)
        return code

    def dismiss(self) -> None:
        """End the idle process."""
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
        if self.process is not None and self.process.poll() is not None:  # killed while it was idle
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
    """The worker's side: train the runs that standard input names, until it is closed.

    If it closes during a run, the sweep was killed: the run saves and stops, so that the sweep can be run again.
    """
    orders: SimpleQueue[str | None] = SimpleQueue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(orders, busy), daemon=True).start()
    while (line := orders.get()) is not None:
        busy.set()
        order = json.loads(line)
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        code = work(order)
        busy.clear()
        sys.stdout.flush()
        sys.stderr.flush()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        with contextlib.suppress(BrokenPipeError):  # the sweep was killed
            os.write(replies, f"{code}\n".encode())


def _listen(orders: "SimpleQueue[str | None]", busy: threading.Event) -> None:
    """Pass on what standard input says, so that its end is noticed during a run."""
    for line in sys.stdin:
        orders.put(line)
    orders.put(None)
    if busy.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


def work(order: Mapping[str, Any]) -> int:
    """One run; returns its exit code."""
    try:
        train(from_dict(order["config"]), order["folder"], resume=order["resume"], device=order["device"])
    except (Diverged, Interrupted) as error:
        print(error, file=sys.stderr)
        return EXIT_CODES[error.status]
    except Exception:
        traceback.print_exc()
        return EXIT_CODES[FAILED]
    return EXIT_CODES[FINISHED]
