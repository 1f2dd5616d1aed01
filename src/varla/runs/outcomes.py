"""How a run ends: statuses, exit codes, the errors that end it early, and the signals that stop it."""

import signal
from dataclasses import dataclass
from types import FrameType

WAITING, RUNNING = "waiting", "running"
FINISHED, DIVERGED, INTERRUPTED, FAILED = "finished", "diverged", "interrupted", "failed"
EXIT_CODES = {FINISHED: 0, FAILED: 1, DIVERGED: 3, INTERRUPTED: 130}
EXIT_USAGE = 2  # nothing was run: the command or its settings are wrong


class Diverged(RuntimeError):
    """A loss or a gradient is not finite. The message says at which step and where."""

    status = DIVERGED


class Interrupted(RuntimeError):
    """Ctrl-C or SIGTERM stopped the run after it was saved. The message says how to resume it."""

    status = INTERRUPTED


@dataclass
class Stop:
    """Turns Ctrl-C and SIGTERM into a flag that a loop reads between steps, so that no step is cut in half.

    A context manager. The first signal of a kind sets `wanted`; the second one has its usual effect.
    """

    wanted: bool = False

    def __enter__(self) -> "Stop":
        try:
            self._before = {number: signal.signal(number, self._set) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: nobody can press Ctrl-C here
            self._before = {}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        signal.signal(number, self._before[signal.Signals(number)])
