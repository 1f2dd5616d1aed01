"""What an item is: claims of the paper, the runs they need, and figures and tables. Nothing is run here."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reproduction.records import NotRun, Results
from reproduction.runs import Preset, Run
from reproduction.verdicts import NOT_RUN, VERDICTS

Value = float | str | None
Judge = Callable[[Results, Preset], "Finding"]


@dataclass(frozen=True)
class Finding:
    """Our result and the verdict on a claim. `low` and `high` are the spread over `count` seeds, if there are several.

    `note` gives the conditions, the counter-example, or what the number means.
    """

    verdict: str
    ours: Value = None
    low: float | None = None
    high: float | None = None
    count: int = 0
    note: str = ""

    def __post_init__(self) -> None:
        """Refuse an unknown verdict."""
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, got {self.verdict!r}")


MISSING = Finding(NOT_RUN)


@dataclass(frozen=True)
class Claim:
    """One statement of the paper. `rule` says in words what `decide` does."""

    id: str  # such as P7-vla-24: the item's number, and what the claim is about
    where: str  # in the paper
    says: str
    paper: Value
    rule: str
    decide: Judge

    def judge(self, results: Results, preset: Preset) -> Finding:
        """The finding from recorded results; MISSING if a run that the rule needs has no record."""
        try:
            return self.decide(results, preset)
        except NotRun:
            return MISSING


@dataclass(frozen=True)
class Figure:
    """A chart as data. A point is {"x", "y", "series", "source"}, with "low" and "high" for a spread.

    `source` is "paper", "ours", or the name of another line, such as "closed form".
    """

    name: str  # for file names
    title: str
    x: str
    y: str
    points: Sequence[Mapping[str, Any]]
    log_x: bool = False
    log_y: bool = False
    note: str = ""
    spread: str = "least to greatest"  # what "low" and "high" are


@dataclass(frozen=True)
class Table:
    """A table as data. Cells are shown as they are."""

    title: str
    headers: Sequence[str]
    rows: Sequence[Sequence[Value]]
    note: str = ""


@dataclass(frozen=True)
class Item:
    """One experiment: its claims, the runs they need, and what the report shows of it.

    `then` gives further runs, which depend on the results of the first ones.
    """

    name: str
    number: str  # such as P6
    title: str
    about: str  # a few sentences for the report
    claims: Sequence[Claim]
    runs: Callable[[Preset], Sequence[Run]]
    then: Callable[[Results, Preset], Sequence[Run]] = field(default=lambda results, preset: ())
    figures: Callable[[Results, Preset], Sequence[Figure]] = field(default=lambda results, preset: ())
    tables: Callable[[Results, Preset], Sequence[Table]] = field(default=lambda results, preset: ())
