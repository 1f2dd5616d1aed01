"""The report as Markdown: an overview, and one page per item with its figures."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from reproduction.claims import Item, Table
from reproduction.report import charts
from reproduction.report.gather import Drawing, Report, Row, Section, command, count
from reproduction.report.numbers import duration, many, number, spread
from reproduction.runs import FULL, QUICK
from reproduction.verdicts import MEANINGS, NOT_RUN, SYMBOLS
from varla.runs.writing import write_aside

FOLDER = Path("docs/reproduction")
OVERVIEW = FOLDER / "README.md"
PICTURES = FOLDER / "figures"
PAPER = "https://arxiv.org/abs/2605.11196"
WRITTEN = "<!-- Written by `python -m reproduction report --docs` from the records in reports/: do not edit. -->"

# The claims on the first page: ids, or patterns of which the first match counts. Those without a match are left out.
HEADLINES = (
    "P7-vla-24",
    "P9-overload-vla-32",
    "P8-vla-512",
    "P11-fixed-linear",
    "P12-ratio",
    "P13-unit-jacobian",
    "P14-recovery",
    "P15-speedup",
    "P15-crossover",
    "P18-vla-deltanet",
)
_ROWS = 10
# GitHub and the site do not both know a backslash before these.
_ENTITIES = {"<": "&lt;", "~": "&#126;", "$": "&#36;"}


def documents(report: Report) -> dict[Path, str]:
    """All pages of docs/reproduction/, by their paths from the repository root."""
    return {OVERVIEW: overview(report), **{page_of(section.item): page(section) for section in report.sections}}


def page_of(item: Item) -> Path:
    """The path of an item's page."""
    return FOLDER / f"{item.name}.md"


def overview(report: Report) -> str:
    """The first page: how many claims have each verdict, the best known of them, the items, the machines."""
    items = [
        (
            section.item.number,
            f"[{plain(section.item.title)}]({page_of(section.item).name})",
            str(len(section.rows)),
            *(str(n or "") for n in count(section.rows).values()),
        )
        for section in report.sections
    ]
    return _joined_parts(
        "# The reproduction",
        WRITTEN,
        "Every claim of the paper [*Variational Linear Attention: Stable Associative Memory for Long-Context "
        f"Transformers*]({PAPER}) that was tested, and the result. The numbers come from "
        f"{many(report.runs, 'recorded run')} ({duration(report.seconds)}). `python -m reproduction report` draws "
        "them as one page with interactive charts.",
        f"Preset `{FULL.name}` has the paper's sizes and seeds ({_joined(FULL.seeds)}). Preset `{QUICK.name}` has seed "
        f"{_joined(QUICK.seeds)} and sizes for two CPU cores; it is shown where `{FULL.name}` has no record.",
        grid(
            ("verdict", "claims", "meaning"),
            [(f"{SYMBOLS[name]} {name}", str(n), MEANINGS[name]) for name, n in report.counts.items()],
        ),
        "## Ten of them",
        grid(
            ("what the paper says", "paper", "ours", "verdict"),
            [
                (
                    f"[{plain(row.claim.says)}]({page_of(row.item).name}#{row.anchor})",
                    plain(number(row.claim.paper)),
                    plain(spread(row.finding)) + _quick(row.preset),
                    f"{SYMBOLS[row.finding.verdict]} {row.finding.verdict}",
                )
                for row in headlines(report.rows)
            ],
        ),
        "## Items",
        grid(("number", "item", "claims", *SYMBOLS.values()), items),
        "## Machines",
        *_machines(report),
    )


def page(section: Section) -> str:
    """An item's page: its claims, figures, tables, runs and settings."""
    item = section.item
    parts = [f"# {item.number} {plain(item.title)}", WRITTEN, plain(item.about)]
    if section.rows:
        counted = f"{many(len(section.rows), 'claim')}: {_verdicts(section.rows)}."
        parts += [f"{counted} [All items]({OVERVIEW.name})", "## Claims", claims(section.rows)]
    for drawing in section.drawings:
        parts += _figure(drawing)
    for listing in section.listings:
        parts += [f"## {plain(listing.table.title)}{_quick(listing.preset)}", *_table(listing.table)]
    parts += ["## Runs", "\n".join(_runs(section))]
    if section.settings:
        rows = [(f"`{name}`", plain(values)) for name, values in section.settings]
        parts += _folded("Settings of these runs", [grid(("setting", "values"), rows)])
    return _joined_parts(*parts)


def claims(rows: Sequence[Row]) -> str:
    """The table of claims."""
    return grid(
        ("claim", "where", "what the paper says", "paper", "ours", "verdict", "rule", "note"),
        [
            (
                f'<a id="{row.anchor}"></a>{row.claim.id}',
                plain(row.claim.where),
                plain(row.claim.says),
                plain(number(row.claim.paper)),
                plain(_ours(row)),
                f"{SYMBOLS[row.finding.verdict]} {row.finding.verdict}",
                plain(row.claim.rule),
                plain(row.finding.note),
            )
            for row in rows
        ],
    )


def summary(rows: Sequence[Row]) -> str:
    """How many claims have each verdict, in a sentence."""
    return f"Of {many(len(rows), 'claim')}: {_verdicts(rows)}."


def headlines(rows: Sequence[Row]) -> list[Row]:
    """The rows of the first page in the order of HEADLINES, but claims that were not run come last."""
    found: dict[str, Row] = {}
    for pattern in HEADLINES:
        fitting = (row for row in rows if fnmatchcase(row.claim.id, pattern) and row.claim.id not in found)
        if (row := next(fitting, None)) is not None:
            found[row.claim.id] = row
    return sorted(found.values(), key=lambda row: row.finding.verdict == NOT_RUN)[:_ROWS]


def write(report: Report, root: Path) -> list[Path]:
    """Write all pages and their figures under a root; remove pages and figures of no item."""
    if not (root / FOLDER.parent).is_dir():
        raise ValueError(f"there is no {FOLDER.parent}/ in {root.resolve()}: run this in the root of the repository")
    texts = {root / path: text for path, text in documents(report).items()}
    figures = {root / PICTURES / f"{x.figure.name}.svg": x.figure for x in _drawings(report)}
    (root / PICTURES).mkdir(parents=True, exist_ok=True)
    for path in {*(root / FOLDER).glob("*.md"), *(root / PICTURES).glob("*.svg")} - {*texts, *figures}:
        path.unlink()
    for path, figure in figures.items():
        # Other fonts give another picture of the same data: a picture of this data is left as it is.
        if not path.exists() or not path.read_text(encoding="utf-8").endswith(f"{charts.stamp(figure)}\n"):
            write_aside(path, charts.svg(figure))
    for path, text in texts.items():
        write_aside(path, text)
    return [*texts, *figures]


def grid(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table. Its cells are Markdown already."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(text: str) -> str:
    """Text escaped for Markdown, in a table as well; backquotes keep their meaning."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    if len(parts) % 2 == 0:  # one is unpaired: they are not meant as quotes
        parts = ["\\`".join(parts)]
    for i in range(0, len(parts), 2):
        for mark in "*[]":
            parts[i] = parts[i].replace(mark, f"\\{mark}")
        for mark, entity in _ENTITIES.items():
            parts[i] = parts[i].replace(mark, entity)
    return "`".join(parts)


def _figure(drawing: Drawing) -> list[str]:
    figure = drawing.figure
    heading = f"## {plain(figure.title)}{_quick(drawing.preset)}"
    if not charts.drawable(figure):
        return [heading, "There is no point to draw yet."]
    picture = f"![{plain(figure.title)}]({PICTURES.name}/{figure.name}.svg)"
    note = [plain(figure.note)] if figure.note else []
    return [heading, picture, *note, *_folded("The numbers", _table(charts.numbers(figure)))]


def _table(table: Table) -> list[str]:
    rows = [[plain(number(cell)) for cell in row] for row in table.rows]
    found = [grid([plain(header) for header in table.headers], rows)]
    return [*found, plain(table.note)] if table.note else found


def _runs(section: Section) -> list[str]:
    lines = []
    for work in section.work:
        if not work.wanted:
            continue
        took = f", {duration(work.seconds)}" if work.recorded else ""
        done = f"{len(work.recorded)} of {many(work.wanted, 'run')} recorded{took}"
        lines.append(f"- Preset `{work.preset}`: {done}; `{command(section.item, work.preset)}`")
        for record in work.troubled:
            reason = f": {record['message']}" if record.get("message") else ""
            lines.append(f"  - {record['status']}: {plain(str(record.get('label')) + reason)}")
    return lines or ["No runs."]


def _machines(report: Report) -> list[str]:
    if not report.machines:
        return ["No run is recorded."]
    names = list(dict.fromkeys(name for machine in report.machines for name in machine.facts))
    rows = [
        (
            *(plain(_joined(machine.facts.get(name, ""))) for name in names),
            _joined(machine.commits),
            str(machine.runs),
            duration(machine.seconds),
        )
        for machine in report.machines
    ]
    return [grid((*names, "commits", "runs", "time"), rows)]


def _folded(title: str, parts: Sequence[str]) -> list[str]:
    return [f"<details><summary>{title}</summary>", *parts, "</details>"]


def _drawings(report: Report) -> list[Drawing]:
    return [x for section in report.sections for x in section.drawings if charts.drawable(x.figure)]


def _verdicts(rows: Sequence[Row]) -> str:
    return ", ".join(f"{n} {verdict}" for verdict, n in count(rows).items() if n)


def _ours(row: Row) -> str:
    seeds = f", {row.finding.count} seeds" if row.finding.count > 1 else ""
    return f"{spread(row.finding)}{seeds}{_quick(row.preset)}"


def _quick(preset: str) -> str:
    return " (quick preset)" if preset == QUICK.name else ""


def _joined(value: object) -> str:
    return ", ".join(str(each) for each in value) if isinstance(value, (list, tuple)) else str(value)


def _joined_parts(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"
