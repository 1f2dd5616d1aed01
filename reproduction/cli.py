"""The commands of `python -m reproduction`: list the items, run them, draw the report."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from varla.cli.errors import Commands
from varla.cli.options import Device, On, check_device
from varla.cli.output import Grid, complain, say, show, table
from varla.cli.sweep import progress
from varla.runs.outcomes import EXIT_CODES, FAILED

if TYPE_CHECKING:
    from reproduction.claims import Finding, Item
    from reproduction.runs import Preset

app = typer.Typer(
    cls=Commands,
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Items = Annotated[list[str] | None, typer.Argument(help="Names of items; by default all.", metavar="ITEM")]
PresetName = Annotated[
    str, typer.Option("--preset", help="quick (two CPU cores, minutes) or full (the paper's sizes).")
]
Records = Annotated[Path, typer.Option(help="Folder of the records.", metavar="FOLDER")]


@app.callback(epilog="Example: python -m reproduction run jacobian")
def root(
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the traceback of an error.")] = False,
) -> None:
    """Run the paper's experiments and compare the results with its claims."""


@app.command("list", epilog="Example: python -m reproduction list --preset full")
def list_items(items: Items = None, preset: PresetName = "quick") -> None:
    """List the items, with the number of claims and runs of each."""
    chosen, size = choose(items, preset)
    rows = [(x.name, x.number, x.title, str(len(x.claims)), str(len(x.runs(size)))) for x in chosen]
    numbers = ("claims", f"runs, {preset}")
    show(table(("item", "number", "title", *numbers), rows, right=numbers))


@app.command(epilog="Example: python -m reproduction run jacobian capacity --preset quick")
def run(
    items: Items = None,
    preset: PresetName = "quick",
    jobs: Annotated[int | None, typer.Option(min=1, help="Training runs at a time.", metavar="N")] = None,
    device: Device = None,
    on: On = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.0, help="Stop and save after this time; the same command continues.", metavar="M"),
    ] = None,
    reports: Records = Path("reports"),
    runs: Annotated[Path, typer.Option(help="Folder of unfinished runs.", metavar="FOLDER")] = Path("runs/reproduce"),
) -> None:
    """Make the runs that have no record yet, then print every claim with its verdict."""
    from reproduction.runner import reproduce

    check_device(device, on)
    chosen, size = choose(items, preset)
    with progress() as watch:
        outcome = reproduce(
            chosen, size, reports=reports, runs=runs, jobs=jobs, device=device, on=on, minutes=minutes,
            watch=watch, say=say,
        )  # fmt: skip
    for item in chosen:
        show(verdicts(item, [claim.judge(outcome.results, size) for claim in item.claims]))
    counts = f"{outcome.before} runs already recorded, {outcome.made} made now, {outcome.left} left"
    say(f"{counts}; records in {reports}")
    for name, reason in outcome.failed:
        complain(f"{name} failed: {reason}")
    if outcome.failed:
        raise typer.Exit(EXIT_CODES[FAILED])


@app.command(epilog="Example: python -m reproduction report --out runs/report/index.html")
def report(
    reports: Records = Path("reports"),
    out: Annotated[Path, typer.Option(help="The page to write.", metavar="FILE")] = Path("runs/report/index.html"),
    docs: Annotated[bool, typer.Option("--docs", help="Also rewrite docs/reproduction/.")] = False,
) -> None:
    """Draw the report from the records: every claim with its verdict, charts, settings, machines. Runs nothing."""
    from reproduction.items import ITEMS
    from reproduction.report import gather, markdown, page

    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out must be an .html file, got {out.name!r}")
    if not gather.recorded(reports):
        raise ValueError(
            f"there are no records in {reports}: make them with `python -m reproduction run`, "
            "or name their folder with --reports"
        )
    found = gather.gather(ITEMS, reports)
    written = [page.write(found, out)]
    if docs:
        written += markdown.write(found, Path())
    show(table(("verdict", "claims"), [(name, str(n)) for name, n in found.counts.items()], right=("claims",)))
    for path in written:
        say(f"written  {path}")


def choose(names: Sequence[str] | None, preset: str) -> "tuple[list[Item], Preset]":
    """The items and the preset of these names. An unknown name is an error that lists the known ones."""
    from reproduction import items
    from reproduction.runs import PRESETS
    from varla.arguments import check_choice

    check_choice("--preset", preset, tuple(PRESETS))
    return items.choose(names or []), PRESETS[preset]


def verdicts(item: "Item", findings: Sequence["Finding"]) -> Grid:
    """A table of an item's claims and findings."""
    from reproduction.report.numbers import number, spread

    rows = [
        (claim.id, claim.says, number(claim.paper), spread(found), found.verdict, found.note)
        for claim, found in zip(item.claims, findings, strict=True)
    ]
    headers = ("claim", "what it says", "paper", "ours", "verdict", "note")
    return table(headers, rows, right=("paper", "ours"), title=f"{item.number} {item.title}")
