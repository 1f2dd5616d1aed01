"""The report as one HTML page, in the standard of `varla.report.page`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from reproduction.claims import Table
from reproduction.report import charts
from reproduction.report.findings import findings, headline, key_charts
from reproduction.report.gather import Drawing, Report, Row, Section, command, count
from reproduction.report.numbers import duration, many, number, spread
from reproduction.runs import FULL, PRESETS, QUICK
from reproduction.verdicts import MEANINGS, SYMBOLS, VERDICTS
from varla.report import page as standard
from varla.report.embed import embedded
from varla.report.page import Beside, Chart, Fold, Grid, Page, Part, anchor, make_environment, prose, template_text

COLUMNS = ("claim", "where", "what the paper says", "paper", "ours", "verdict", "preset", "rule", "note")
TITLE = "Variational Linear Attention: the reproduction"
_PACKAGE = "reproduction.report"
_KINDS = {verdict: verdict.replace(" ", "-") for verdict in VERDICTS}  # as classes of the style


@dataclass(frozen=True)
class Cell:
    """A cell of the table of claims: its text and its sort key."""

    column: str
    shown: str | Markup
    key: str


def make(report: Report) -> Page:
    """The page: the result in sentences, the verdicts as tiles, three charts, then item by item, and all claims."""
    templates = _templates(report)
    first = [
        standard.Section("The verdicts", [_filled(templates, "tiles.html", tip=tip)], "verdicts", "Verdicts"),
        *_key_section(report),
    ]
    last = [
        standard.Section("All claims in one table", [_all_claims(report, templates)], "claims", "All claims"),
        standard.Section("Machines", [_filled(templates, "machines.html", machines=report.machines)], "machines"),
    ]
    return Page(
        TITLE,
        headline(report.rows, report.counts),
        [*first, *(_item(section, templates) for section in report.sections), *last],
        lead=[Markup('{} <a class="permalink" href="#{}">{}</a>').format(prose(text), row.anchor, row.claim.id)
              for row, text in findings(report.rows)],
        facts={"runs": f"{report.runs:,}", "time": duration(report.seconds), "machines": _machines(report)},
        footer="`python -m reproduction report` drew this page from records. Opening it runs and fetches nothing.",
        style=template_text(_PACKAGE, "page.css"),
        script=template_text(_PACKAGE, "page.js"),
    )  # fmt: skip


def write(report: Report, path: Path) -> Path:
    """Write the page, and make missing folders."""
    return standard.write(make(report), path)


def cells(row: Row) -> list[Cell]:
    """A row of the table of claims, in the order of COLUMNS."""
    claim, found = row.claim, row.finding
    seeds = many(found.count, "seed") if found.count else ""
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
    )  # fmt: skip
    return [Cell(column, text, str(key)) for column, (text, key) in zip(COLUMNS, shown, strict=True)]


def tip(row: Row) -> str:
    """What a tile stands for, in three lines."""
    paper = f"paper {number(row.claim.paper)}" if row.claim.paper is not None else ""
    ours = f"ours {spread(row.finding)}" if row.finding.ours is not None else ""
    values = ", ".join(part for part in (paper, ours) if part)
    return f"{row.claim.id}: {row.finding.verdict}\n{row.claim.says.replace('`', '')}\n{values}".rstrip()


def identity(drawing: Drawing) -> str:
    """The id of the element that a chart is drawn into."""
    return f"figure-{anchor(drawing.figure.name)}"


def _key_section(report: Report) -> list[standard.Section]:
    shown = []
    for section, drawing, says in key_charts(report):
        source = Markup('From <a href="#{}">{}</a>.').format(section.anchor, section.item.title)
        shown.append(_chart(drawing, f"key-{identity(drawing)}", Markup("{} {}").format(prose(says), source)))
    return [standard.Section("Charts to begin with", [Beside(shown)], "charts", "Charts")] if shown else []


def _item(section: Section, templates: Environment) -> standard.Section:
    parts: list[Part] = [section.item.about]
    if section.rows:
        claims = _filled(templates, "claims.html", rows=section.rows)
        parts.append(Fold(_counted(section.rows), [claims]))
    drawn = [_chart(x, identity(x)) for x in section.drawings if charts.drawable(x.figure)]
    parts += [Beside(drawn)] if len(drawn) > 1 else drawn
    parts += [
        Markup("<p><strong>{}</strong>: There is no point to draw yet.</p>").format(prose(x.figure.title))
        for x in section.drawings
        if not charts.drawable(x.figure)
    ]
    for listing in section.listings:
        title = f"{listing.table.title}{' (quick preset)' if listing.preset == QUICK.name else ''}"
        parts.append(Fold(f"Table: {title}", [_grid(listing.table)]))
    runs: list[Part] = [_filled(templates, "runs.html", section=section)]
    if section.settings:
        names = ("setting", "values (other settings have their defaults)")
        runs.append(Grid("Settings of these runs", names, section.settings))
    troubled = sum(len(work.troubled) for work in section.work)
    trouble = f": {many(troubled, 'run')} did not finish" if troubled else ""
    parts.append(Fold(f"Runs and settings{trouble}", runs))
    title = f"{section.item.number} {section.item.title}"
    return standard.Section(title, parts, section.anchor)


def _all_claims(report: Report, templates: Environment) -> Fold:
    full, quick = PRESETS[FULL.name], PRESETS[QUICK.name]
    presets = (
        f"Preset `{full.name}` has the paper's sizes and seeds ({', '.join(map(str, full.seeds))}). Preset "
        f"`{quick.name}` has seed {', '.join(map(str, quick.seeds))} and sizes for two CPU cores; it is shown where "
        f"`{full.name}` has no record."
    )
    table = _filled(templates, "table.html", columns=COLUMNS, cells=cells)
    return Fold(f"{many(len(report.rows), 'claim')}, to sort, filter and search", [presets, table])


def _chart(drawing: Drawing, name: str, says: Markup | None = None) -> Chart:
    figure = drawing.figure
    about: str = "; ".join(part for part in (charts.look(figure), figure.note) if part)
    return Chart(
        name,
        figure.title,
        embedded(charts.chart(figure)),
        Markup("{}<br>{}").format(says, prose(about)) if says else about,
        _grid(charts.numbers(figure)),
        "quick preset" if drawing.preset == QUICK.name else "",
    )


def _grid(table: Table) -> Grid:
    rows = [[number(cell) for cell in row] for row in table.rows]
    return Grid(table.title, table.headers, rows, note=table.note)


def _counted(rows: Sequence[Row]) -> Markup:
    """How many claims there are of each verdict, by its symbol and in words."""
    parts = Markup(" ").join(
        Markup('<span class="{}"><b aria-hidden="true">{}</b> {} {}</span>').format(
            _KINDS[verdict], SYMBOLS[verdict], n, verdict
        )
        for verdict, n in count(rows).items()
        if n
    )
    return Markup('<span class="counted"><strong>{}, with their rules:</strong> {}</span>').format(
        many(len(rows), "claim"), parts
    )


def _machines(report: Report) -> str:
    named = [[machine.facts.get("processor"), *machine.facts.get("gpus", [])] for machine in report.machines]
    return "; ".join(dict.fromkeys(", ".join(str(part) for part in each if part) for each in named)) or "none"


def _templates(report: Report) -> Environment:
    environment = make_environment(_PACKAGE)
    environment.filters.update(number=number, duration=duration, many=many)
    environment.globals.update(
        report=report, counts=report.counts, verdicts=VERDICTS, symbols=SYMBOLS, meanings=MEANINGS, kinds=_KINDS,
        quick=QUICK.name, spread=spread, command=command,
    )  # fmt: skip
    return environment


def _filled(templates: Environment, name: str, **values: Any) -> Markup:
    return Markup(templates.get_template(name).render(values))


def _key(value: float | str | None) -> str:
    """The sort key of a value, with all its digits."""
    return "" if value is None else str(value)
