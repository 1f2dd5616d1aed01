"""The report for reading on a code host: docs/reproduction.md with its pictures, and the README's ten rows."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from varla.experiments.claims import NOT_RUN, Table
from varla.experiments.runs import FULL, QUICK
from varla.report.numbers import duration, number, spread
from varla.report.reproduction import charts
from varla.report.reproduction.gather import Drawing, Report, Row, Section, command, count
from varla.report.reproduction.page import MEANINGS, SYMBOLS, many
from varla.runs.folder import write_aside

DOCUMENT = Path("docs/reproduction.md")
PICTURES = Path("docs/figures/reproduction")
README = Path("README.md")
BEGIN, END = "<!-- reproduction: begin -->", "<!-- reproduction: end -->"

# The README's rows: ids of claims, or patterns that stand for the first claim that fits. Others are left out.
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


def document(report: Report) -> str:
    """docs/reproduction.md."""
    parts = [
        "# The reproduction",
        "<!-- Written by `varla report --docs` from the records in reports/; not to be edited. -->",
        "Every statement of the paper *Variational Linear Attention: Stable Associative Memory for Long-Context "
        f"Transformers* that was put to a test, with what came out. Drawn from {many(report.runs, 'recorded run')} "
        f"({duration(report.seconds)}); `varla report` makes a page of the same with charts to explore.",
        f"Preset `{FULL.name}`: the paper's sizes and seeds ({_joined(FULL.seeds)}). Preset `{QUICK.name}`: sizes for "
        f"two CPU cores, seed {_joined(QUICK.seeds)}; shown where there is no record at `{FULL.name}`.",
        grid(
            ("verdict", "claims", "meaning"),
            [(f"{SYMBOLS[name]} {name}", str(n), MEANINGS[name]) for name, n in report.counts.items()],
        ),
        "## Claims",
        claims(report.rows),
        *(part for section in report.sections for part in _section(section)),
        "## Machines",
        *_machines(report),
    ]
    return "\n\n".join(parts) + "\n"


def claims(rows: Sequence[Row]) -> str:
    """The table of claims."""
    headers = ("claim", "where", "what the paper says", "paper", "ours", "verdict", "preset", "how decided", "note",
               "made by")  # fmt: skip
    return grid(
        headers,
        [
            (
                f'<a id="{row.anchor}"></a>{row.claim.id}',
                plain(row.claim.where),
                plain(row.claim.says),
                plain(number(row.claim.paper)),
                plain(_ours(row)),
                f"{SYMBOLS[row.finding.verdict]} {row.finding.verdict}",
                row.preset,
                plain(row.claim.rule),
                plain(row.finding.note),
                f"`{row.command}`",
            )
            for row in rows
        ],
    )


def block(report: Report) -> str:
    """What stands in the README between the markers: up to ten claims, and how many there are of each verdict."""
    rows = headlines(report.rows)
    table = grid(
        ("what the paper says", "paper", "ours", "verdict"),
        [
            (
                f"[{plain(row.claim.says)}]({DOCUMENT.as_posix()}#{row.anchor})",
                plain(number(row.claim.paper)),
                plain(spread(row.finding)) + (" (quick preset)" if row.preset == QUICK.name else ""),
                f"{SYMBOLS[row.finding.verdict]} {row.finding.verdict}",
            )
            for row in rows
        ],
    )
    total = f"Of {many(len(report.rows), 'claim')}: {_verdicts(report.rows)}."
    return f"{table}\n\n{total} All of them, with charts and settings: [{DOCUMENT}]({DOCUMENT.as_posix()})."


def headlines(rows: Sequence[Row]) -> list[Row]:
    """The README's, in the order of HEADLINES; those that were run before those that were not."""
    found: dict[str, Row] = {}
    for pattern in HEADLINES:
        fitting = (row for row in rows if fnmatchcase(row.claim.id, pattern) and row.claim.id not in found)
        if (row := next(fitting, None)) is not None:
            found[row.claim.id] = row
    return sorted(found.values(), key=lambda row: row.finding.verdict == NOT_RUN)[:_ROWS]


def insert(text: str, content: str) -> str:
    """The README with this between the markers."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise ValueError(f"{README} must hold {BEGIN} and, below it, {END}, each once")
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n{content}\n{END}{rest.split(END)[1]}"


def write(report: Report, root: Path) -> list[Path]:
    """Write the document, its pictures and the README's rows under a root; pictures that nothing shows are removed."""
    if not (root / README).exists():
        raise ValueError(f"there is no {README} in {root.resolve()}: run this in the root of the repository")
    readme = insert((root / README).read_text(encoding="utf-8"), block(report))
    pictures = root / PICTURES
    pictures.mkdir(parents=True, exist_ok=True)
    drawn = {pictures / f"{x.figure.name}.svg": x.figure for x in _drawings(report)}
    for path in set(pictures.glob("*.svg")) - set(drawn):
        path.unlink()
    for path, figure in drawn.items():
        # The same data gives the same picture but for fonts: what is up to date is left as it is.
        if not path.exists() or not path.read_text(encoding="utf-8").endswith(f"{charts.stamp(figure)}\n"):
            write_aside(path, charts.svg(figure))
    write_aside(root / DOCUMENT, document(report))
    write_aside(root / README, readme)
    return [root / DOCUMENT, *drawn, root / README]


def grid(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already."""
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def plain(text: str) -> str:
    """Text as Markdown that shows it as it is, in a table, too; backquotes keep their meaning."""
    parts = " ".join(text.split()).replace("|", "\\|").split("`")
    if len(parts) % 2 == 0:  # one is left over: then they are not meant as quotes
        parts = ["\\`".join(parts)]
    for i in range(0, len(parts), 2):
        for mark in "<*~[]$":
            parts[i] = parts[i].replace(mark, f"\\{mark}")
    return "`".join(parts)


def _section(section: Section) -> list[str]:
    item = section.item
    parts = [f"## {item.number} {plain(item.title)}", plain(item.about)]
    if section.rows:
        parts.append(f"{many(len(section.rows), 'claim')}: {_verdicts(section.rows)}.")
    for drawing in section.drawings:
        parts += _figure(drawing)
    for listing in section.listings:
        parts += [f"### {plain(listing.table.title)}{_quick(listing.preset)}", *_table(listing.table)]
    parts.append("\n".join(_runs(section)))
    if section.settings:
        rows = [(f"`{name}`", plain(values)) for name, values in section.settings]
        parts += _folded("Settings of these runs", [grid(("setting", "values"), rows)])
    return parts


def _figure(drawing: Drawing) -> list[str]:
    figure = drawing.figure
    heading = f"### {plain(figure.title)}{_quick(drawing.preset)}"
    if not charts.drawable(figure):
        return [heading, "There is no point to draw yet."]
    picture = f"![{plain(figure.title)}]({PICTURES.relative_to(DOCUMENT.parent).as_posix()}/{figure.name}.svg)"
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
    return f"{spread(row.finding)}{seeds}"


def _quick(preset: str) -> str:
    return " (quick preset)" if preset == QUICK.name else ""


def _joined(value: object) -> str:
    return ", ".join(str(each) for each in value) if isinstance(value, (list, tuple)) else str(value)
