"""Ctrl-C and SIGTERM as a flag that is looked at between steps, so that nothing is cut off half-way through one."""

import signal
from dataclasses import dataclass
from types import FrameType


@dataclass
class Stop:
    """As a context, catches the signals: the first of a kind sets `wanted`, a second acts as if nobody caught it."""

    wanted: bool = False

    def __enter__(self) -> "Stop":
        """Begin to catch."""
        try:
            self._before = {number: signal.signal(number, self._set) for number in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: nobody can press Ctrl-C here
            self._before = {}
        return self

    def __exit__(self, *_: object) -> None:
        """Put the handlers back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _set(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        signal.signal(number, self._before[signal.Signals(number)])
