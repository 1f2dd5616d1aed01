"""The report as one HTML page, which opens from a file and needs no network."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from reproduction.report import charts
from reproduction.report.gather import Drawing, Report, Row, command
from reproduction.report.numbers import duration, many, number, spread
from reproduction.runs import FULL, PRESETS, QUICK
from reproduction.verdicts import MEANINGS, SYMBOLS, VERDICTS
from varla.runs.writing import write_aside

COLUMNS = (
    "claim", "where", "what the paper says", "paper", "ours", "verdict", "preset", "rule", "note", "made by",
)  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """A cell of the table of claims: its text and its sort key."""

    column: str
    shown: str | Markup
    key: str


def render(report: Report) -> str:
    """The page's HTML."""
    environment = Environment(
        loader=PackageLoader("reproduction.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters.update(prose=prose, number=number, duration=duration, many=many)
    drawings = [drawing for section in report.sections for drawing in section.drawings]
    specs = {identity(drawing): spec(drawing) for drawing in drawings if charts.drawable(drawing.figure)}
    return environment.get_template("page.html").render(
        report=report,
        columns=COLUMNS,
        cells=cells,
        verdicts=VERDICTS,
        symbols=SYMBOLS,
        meanings=MEANINGS,
        kinds={verdict: verdict.replace(" ", "-") for verdict in VERDICTS},
        presets=PRESETS,
        full=FULL.name,
        quick=QUICK.name,
        identity=identity,
        look=charts.look,
        numbers=charts.numbers,
        command=command,
        typed=typed,
        drawn=specs.keys(),
        specs=script_json(specs),
        style=_part("page.css"),
        behaviour=_part("page.js"),
        vega=Markup(charts.script()) if specs else "",
    )


def write(report: Report, path: Path) -> Path:
    """Write the page, and make missing folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_aside(path, render(report))
    return path


def cells(row: Row) -> list[Cell]:
    """A row of the table of claims, in the order of COLUMNS."""
    claim, found = row.claim, row.finding
    seeds = f"{found.count} seeds" if found.count > 1 else "1 seed" if found.count else ""
    ours = Markup("{}<br><small>{}</small>").format(spread(found), seeds) if seeds else spread(found)
    shown: Sequence[tuple[str | Markup, Any]] = (
        (Markup('<a href="#{}">{}</a>').format(row.anchor, claim.id), claim.id),
        (prose(claim.where), claim.where),
        (prose(claim.says), claim.says),
        (number(claim.paper), _key(claim.paper)),
        (ours, _key(found.ours)),
        (Markup('<span aria-hidden="true">{}</span>\u00a0{}').format(SYMBOLS[found.verdict], found.verdict),
         VERDICTS.index(found.verdict)),
        (Markup('<span class="tag">quick</span>') if row.preset == QUICK.name else row.preset, row.preset),
        (prose(claim.rule), claim.rule),
        (prose(found.note), found.note),
        (typed(row.command), row.command),
    )  # fmt: skip
    return [Cell(column, text, str(key)) for column, (text, key) in zip(COLUMNS, shown, strict=True)]


def spec(drawing: Drawing) -> dict[str, Any]:
    """The chart as Vega-Lite."""
    found: dict[str, Any] = charts.chart(drawing.figure).to_dict()
    return found


def identity(drawing: Drawing) -> str:
    """The id of the element that a chart is drawn into."""
    return f"figure-{re.sub(r'[^A-Za-z0-9-]+', '-', drawing.figure.name)}"


def prose(text: str) -> Markup:
    """Text as HTML; parts between backquotes become code."""
    parts = str(escape(text)).split("`")
    if len(parts) % 2 == 0:  # one is unpaired: they are not meant as quotes
        return escape(text)
    return Markup("".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts)))


def typed(text: str) -> Markup:
    """A command as HTML that wraps before its options, not within them."""
    name, _, options = text.partition(" --")
    return (
        Markup("<code>{} <span>--{}</span></code>").format(name, options)
        if options
        else Markup("<code>{}</code>").format(name)
    )


def script_json(value: Any) -> Markup:
    """JSON for a script element: nothing in it ends the element."""
    return Markup(json.dumps(value, separators=(",", ":")).replace("<", "\\u003c"))


def _key(value: float | str | None) -> str:
    """The sort key of a value, with all its digits."""
    return "" if value is None else str(value)


def _part(name: str) -> Markup:
    folder = resources.files("reproduction.report") / "templates"
    return Markup((folder / name).read_text(encoding="utf-8"))
