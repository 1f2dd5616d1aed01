"""The content of the report, from items and records: claims with findings, figures, tables, runs, machines.

Everything comes from the preset `full`; what has no record there comes from `quick`, and the report says so.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reproduction import records
from reproduction.claims import Claim, Figure, Finding, Item, Table
from reproduction.records import Record, Results
from reproduction.runner import wanted
from reproduction.runs import FULL, PRESETS, QUICK, Run
from reproduction.verdicts import NOT_RUN, VERDICTS
from varla.report.page import anchor
from varla.runs.outcomes import FINISHED
from varla.training import RunConfig

ORDER = (FULL, QUICK)  # the preset that counts if both have records comes first
_MACHINE = ("processor", "cores", "threads", "gpus", "system", "python", "torch", "varla")


@dataclass(frozen=True)
class Row:
    """A claim, the finding, and the preset it is from ("" if not run)."""

    item: Item
    claim: Claim
    finding: Finding
    preset: str

    @property
    def anchor(self) -> str:
        """The claim's id as an anchor."""
        return anchor(self.claim.id)

    @property
    def command(self) -> str:
        """The command that makes the claim's runs."""
        return command(self.item, self.preset or FULL.name)


@dataclass(frozen=True)
class Drawing:
    """A figure, and the preset it is drawn from."""

    figure: Figure
    preset: str


@dataclass(frozen=True)
class Listing:
    """A table, and the preset it is made from."""

    table: Table
    preset: str


@dataclass(frozen=True)
class Work:
    """The runs of an item at a preset: how many it wants, and the recorded ones."""

    preset: str
    wanted: int
    recorded: tuple[Record, ...]

    @property
    def seconds(self) -> float:
        """The time of all recorded runs."""
        return sum(float(record.get("seconds") or 0.0) for record in self.recorded)

    @property
    def troubled(self) -> list[Record]:
        """The recorded runs that did not finish."""
        return [record for record in self.recorded if record["status"] != FINISHED]


@dataclass(frozen=True)
class Section:
    """One item of the report."""

    item: Item
    rows: tuple[Row, ...]
    drawings: tuple[Drawing, ...]
    listings: tuple[Listing, ...]
    work: tuple[Work, ...]

    @property
    def anchor(self) -> str:
        """The section's anchor."""
        return anchor(f"item-{self.item.name}")

    @property
    def settings(self) -> list[tuple[str, str]]:
        """The settings of its runs, each with its values."""
        return settings([record for work in self.work for record in work.recorded])


@dataclass(frozen=True)
class Machine:
    """A machine that made runs: its facts, the commits, the number of runs and their time."""

    facts: Mapping[str, Any]
    commits: tuple[str, ...]
    runs: int
    seconds: float


@dataclass(frozen=True)
class Report:
    """The whole report."""

    sections: tuple[Section, ...]
    machines: tuple[Machine, ...]

    @property
    def rows(self) -> list[Row]:
        """Every claim."""
        return [row for section in self.sections for row in section.rows]

    @property
    def counts(self) -> dict[str, int]:
        """How many claims have each verdict."""
        return count(self.rows)

    @property
    def runs(self) -> int:
        """The number of recorded runs."""
        return sum(machine.runs for machine in self.machines)

    @property
    def seconds(self) -> float:
        """The time of all recorded runs."""
        return sum(machine.seconds for machine in self.machines)


def gather(items: Sequence[Item], folder: Path) -> Report:
    """The report of these items from the records in a folder."""
    found = {preset.name: records.load(folder, preset.name) for preset in ORDER}
    sections = tuple(_section(item, found) for item in items)
    _refuse_twins("claims", "id", [row.anchor for section in sections for row in section.rows])
    _refuse_twins("figures", "name", [x.figure.name for section in sections for x in section.drawings])
    return Report(sections, _machines(sections))


def recorded(folder: Path) -> bool:
    """Whether the folder has any record."""
    return any(any((folder / preset).glob("*.json")) for preset in PRESETS)


def count(rows: Sequence[Row]) -> dict[str, int]:
    """How many rows have each verdict: all five, in order."""
    found = Counter(row.finding.verdict for row in rows)
    return {verdict: found[verdict] for verdict in VERDICTS}


def command(item: Item, preset: str) -> str:
    """The command that makes an item's runs."""
    return f"python -m reproduction run {item.name} --preset {preset}"


def settings(found: Sequence[Record], most: int = 12) -> list[tuple[str, str]]:
    """(setting, its values) over records. A training setting that always has its default is left out."""
    usual = dict(_flat(RunConfig().to_dict()))
    trained = [dict(_flat(record["train"])) for record in found if record.get("train")]
    named = dict.fromkeys(name for each in trained for name in (*each, "seed"))
    rows: list[dict[str, Any]] = [
        {name: each.get(name, usual.get(name)) for name in named if name in each or name in usual} for each in trained
    ]
    rows += [
        {"measurement": record["measure"].rpartition(".")[2], **dict(_flat(record.get("arguments") or {}))}
        for record in found
        if record.get("measure")
    ]
    values: dict[str, dict[str, None]] = {}  # inner dictionaries are ordered sets
    for name, value in (pair for row in rows for pair in row.items()):
        values.setdefault(name, {})[value if isinstance(value, str) else json.dumps(value)] = None
    return [(name, _some(list(each), most)) for name, each in values.items()]


def _refuse_twins(what: str, kind: str, names: Sequence[str]) -> None:
    """Names become anchors and files, so no two may be equal."""
    if twins := [name for name, n in Counter(names).items() if n > 1]:
        raise ValueError(f"two {what} have the {kind} {twins[0]}: the report needs different ones")


def _section(item: Item, found: Mapping[str, Results]) -> Section:
    rows = tuple(_row(item, claim, found) for claim in item.claims)
    work = tuple(_work(preset.name, wanted(item, preset, found[preset.name]), found[preset.name]) for preset in ORDER)
    return Section(item, rows, _drawings(item, found), _listings(item, found, work), work)


def _row(item: Item, claim: Claim, found: Mapping[str, Results]) -> Row:
    for preset in ORDER:
        finding = claim.judge(found[preset.name], preset)
        if finding.verdict != NOT_RUN:
            return Row(item, claim, finding, preset.name)
    return Row(item, claim, finding, "")


def _work(preset: str, runs: Sequence[Run], results: Results) -> Work:
    keys = list(dict.fromkeys(run.key for run in runs))
    return Work(preset, len(keys), tuple(results.records[key] for key in keys if key in results.records))


def _drawings(item: Item, found: Mapping[str, Results]) -> tuple[Drawing, ...]:
    """Figures of the full preset, or of the quick one if only that has points of ours."""
    best: dict[str, Drawing] = {}
    for preset in ORDER:
        for figure in item.figures(found[preset.name], preset):
            before = best.get(figure.name)
            if before is None or _content(figure) > _content(before.figure):
                best[figure.name] = Drawing(figure, preset.name)
    return tuple(best.values())


def _content(figure: Figure) -> int:
    """2 if the figure has points of ours, 1 if it has only others, 0 if it has none."""
    return 2 if any(point["source"] == "ours" for point in figure.points) else min(len(figure.points), 1)


def _listings(item: Item, found: Mapping[str, Results], work: Sequence[Work]) -> tuple[Listing, ...]:
    """Tables of the first preset with a recorded run; of `full` if there is none, because a table may need no run."""
    preset = next((each.preset for each in work if each.recorded), FULL.name)
    return tuple(Listing(table, preset) for table in item.tables(found[preset], PRESETS[preset]))


def _machines(sections: Sequence[Section]) -> tuple[Machine, ...]:
    every = {(w.preset, r["key"]): r for section in sections for w in section.work for r in w.recorded}
    groups: dict[str, list[Record]] = {}
    for record in every.values():
        groups.setdefault(json.dumps(_facts(record), sort_keys=True), []).append(record)
    return tuple(
        Machine(
            facts=_facts(group[0]),
            commits=tuple(sorted({str(c)[:10] for r in group if (c := (r.get("environment") or {}).get("commit"))})),
            runs=len(group),
            seconds=sum(float(record.get("seconds") or 0.0) for record in group),
        )
        for group in groups.values()
    )


def _facts(record: Record) -> dict[str, Any]:
    """The facts that tell machines apart."""
    surroundings = record.get("environment") or {}
    return {name: surroundings[name] for name in _MACHINE if surroundings.get(name) not in (None, [])}


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found = []
    for name, value in values.items():
        nested = isinstance(value, Mapping) and value
        found += _flat(value, f"{prefix}{name}.") if nested else [(f"{prefix}{name}", value)]
    return found


def _some(values: Sequence[str], most: int) -> str:
    shown = ", ".join(values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"
