"""What all kinds share: tries, finds, and a limit of time for each try."""

import random
import re
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import varla

PACKAGE = Path(varla.__file__).parent
LIMIT = 10.0  # seconds of the processor for one try: on a busy machine, time passes without it
WAIT = 120.0  # seconds, also without the processor
REFUSED, ACCEPTED = "refused", "accepted"
Attempt = Callable[[random.Random], str]


class Find(Exception):
    """Something that a user should not see."""


@dataclass
class Result:
    """The tries of one kind: how many ended how, and one example of each find."""

    kind: str
    outcomes: Counter[str] = field(default_factory=Counter)
    finds: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        found = "".join(f"\n  {text}" for text in self.finds.values())
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.outcomes.items()))
        return f"{self.kind}: {self.outcomes.total()} tries, {counts}{found}"


def run(kind: str, attempt: Attempt, tries: int, seed: int = 0, first: int = 0) -> Result:
    """Try `tries` times, beginning with try `first`."""
    result = Result(kind)
    for number in range(first, first + tries):
        try:
            with _limit():
                outcome = attempt(random.Random(f"{kind} {seed} {number}"))
        except Exception as error:  # that is what we are looking for
            outcome = "found"
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
            key = re.sub(r"\d+", "", text[:60]) if isinstance(error, Find) else f"{where.filename}:{where.lineno}"
            again = f"--only {kind} --seed {seed} --first {number} --tries 1"
            result.finds.setdefault(key, f"{text} ({Path(where.filename).name}:{where.lineno}; {again})")
        result.outcomes[outcome] += 1
    return result


@contextmanager
def _limit() -> Iterator[None]:
    def stop(number: int, _: object) -> None:
        raise Find(f"not done after {LIMIT if number == signal.SIGPROF else WAIT:g} seconds")

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, LIMIT), signal.SIGALRM: (signal.ITIMER_REAL, WAIT)}
    before = {number: signal.signal(number, stop) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def refused(error: Exception, *names: str) -> str:
    """REFUSED if varla itself raised the error and its message has one of the names as a word; else a Find.

    Python may refuse the call itself: an argument is missing, or unknown.
    """
    *_, where = steps = traceback.extract_tb(error.__traceback__)
    raised = PACKAGE in Path(where.filename).parents and (where.line or "").startswith("raise ")
    ours = raised or len(steps) == 1
    if not (isinstance(error, OSError) or (ours and isinstance(error, ValueError | TypeError | RuntimeError))):
        raise error
    if not any(re.search(rf"(?<!\w){re.escape(name)}(?!\w)", str(error)) for name in names):
        raise Find(f"{type(error).__name__} names no argument or file: {error}") from error
    return REFUSED
