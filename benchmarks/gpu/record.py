"""The options of a section, its findings, and how they are printed and saved."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks import measure
from varla.runs import environment

Row = dict[str, Any]


@dataclass(frozen=True)
class Options:
    quick: bool = False
    peers: str | None = None

    @property
    def repeats(self) -> int:
        return 3 if self.quick else 20


@dataclass
class Findings:
    """What a section has measured so far. `keep` saves it, so that a stop loses only the current measurement."""

    tables: dict[str, list[Row]] = field(default_factory=dict)
    goals: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    details: list[Row] = field(default_factory=list)  # for the file only
    error: str | None = None
    seconds: float = 0.0
    keep: Callable[[], None] = lambda: None

    def add(self, title: str, **row: Any) -> None:
        self.tables.setdefault(title, []).append(row)

    def goal(self, what: str, found: float | None, *, most: float | None = None, least: float | None = None) -> None:
        """Compare a number with a limit. None (not measured) and NaN do not meet it."""
        is_met = found is not None and (most is None or found <= most) and (least is None or found >= least)
        limit = f"at most {most:g}" if most is not None else f"at least {least:g}"
        self.goals.append({"goal": what, "found": found, "limit": limit, "met": is_met})

    def to_dict(self) -> Row:
        values = {"tables": self.tables, "goals": self.goals, "notes": self.notes, "details": self.details}
        return {"seconds": round(self.seconds, 1), **{k: v for k, v in values.items() if v}, "error": self.error}


def cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "-" if value is None else str(value)[:80]


def render(name: str, found: Findings) -> str:
    """All tables, goals and notes as text for the terminal."""
    parts = [f"== {name} ({found.seconds:.0f} s)"]
    for title, rows in {**found.tables, "goals": found.goals}.items():
        if rows:
            header = list(dict.fromkeys(key for row in rows for key in row))
            cells = [[cell(row.get(key)) for key in header] for row in rows]
            parts.append(f"{title}\n{measure.table(header, cells)}")
    parts += [f"note: {note}" for note in found.notes]
    parts += [f"FAILED: {found.error}"] if found.error else []
    return "\n\n".join(parts)


def save(name: str, found: Findings, order: Sequence[str]) -> None:
    """Save a section in gpu.json, which keeps its other sections. They are written in `order`."""
    path = measure.RESULTS / "gpu.json"
    before: Row = json.loads(path.read_text())["sections"] if path.exists() else {}
    machine = environment.describe()
    now = {key: machine[key] for key in ("date", "commit", "gpus", "torch")}
    sections = {**before, name: {**now, **found.to_dict()}}
    measure.write("gpu", {"machine": machine, "sections": {key: sections[key] for key in order if key in sections}})


def text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
