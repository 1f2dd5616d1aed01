"""What the paper claims, and how what was found is held against it: plain data, nothing is run here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reproduction.records import Results
from reproduction.runs import Preset, Run

REPRODUCED = "reproduced"
CONDITIONAL = "reproduced with conditions"
NOT_REPRODUCED = "not reproduced"
FALSE = "false"
NOT_RUN = "not run"
VERDICTS = (REPRODUCED, CONDITIONAL, NOT_REPRODUCED, FALSE, NOT_RUN)

Value = float | str | None
Judge = Callable[[Results, Preset], "Finding"]


@dataclass(frozen=True)
class Finding:
    """What came out, and the verdict. `low` and `high`: the spread over `count` seeds, where there are several.

    `note` gives the conditions, the counter-example, or what the number is.
    """

    verdict: str
    ours: Value = None
    low: float | None = None
    high: float | None = None
    count: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        """A verdict is one of five."""
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, got {self.verdict!r}")


MISSING = Finding(NOT_RUN)


@dataclass(frozen=True)
class Claim:
    """One statement of the paper. `rule` says in words what `judge` does; a claim whose runs are missing is MISSING."""

    id: str  # such as P7-vla-24: the item of the reading list, and what it is about
    where: str  # in the paper
    says: str
    paper: Value
    rule: str
    judge: Judge


@dataclass(frozen=True)
class Figure:
    """A chart as data. points: {"x", "y", "series", "source"} and, for a spread, "low" and "high".

    `source` is "paper", "ours", or what else a line of its own is ("closed form").
    """

    name: str  # for file names
    title: str
    x: str
    y: str
    points: Sequence[Mapping[str, Any]]
    log_x: bool = False
    log_y: bool = False
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table as data, cells as they are to be shown."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""


@dataclass(frozen=True)
class Item:
    """One experiment: its claims, the runs they need, and what there is to look at.

    `then`: further runs that depend on how the first ones came out.
    """

    name: str
    number: str  # of the reading list: P6
    title: str
    about: str  # a few sentences for the reader of the report
    claims: Sequence[Claim]
    runs: Callable[[Preset], Sequence[Run]]
    then: Callable[[Results, Preset], Sequence[Run]] = field(default=lambda results, preset: ())
    figures: Callable[[Results, Preset], Sequence[Figure]] = field(default=lambda results, preset: ())
    tables: Callable[[Results, Preset], Sequence[Table]] = field(default=lambda results, preset: ())
