"""`varla reproduce`: run the paper's experiments and hold what comes out against what it says."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from varla.cli.options import Device, check_device
from varla.cli.output import complain, console, say, show, table
from varla.cli.sweep import Board, Lines
from varla.report.numbers import number, spread
from varla.runs.outcomes import EXIT_CODES, FAILED

if TYPE_CHECKING:
    from varla.experiments.claims import Finding, Item


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: varla reproduce jacobian capacity --preset quick")(reproduce)


def reproduce(
    items: Annotated[list[str] | None, typer.Argument(help="Which experiments; left out, all.", metavar="ITEM")] = None,
    preset: Annotated[str, typer.Option(help="quick (two CPU cores, minutes) or full (the paper's sizes).")] = "quick",
    jobs: Annotated[int | None, typer.Option(min=1, help="Training runs at a time.", metavar="N")] = None,
    device: Device = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after so long, saved; the same command goes on.", metavar="M")
    ] = None,
    reports: Annotated[Path, typer.Option(help="Folder of the records.", metavar="FOLDER")] = Path("reports"),
    runs: Annotated[Path, typer.Option(help="Folder of unfinished runs.", metavar="FOLDER")] = Path("runs/reproduce"),
    show_items: Annotated[bool, typer.Option("--list", help="Only say which experiments there are.")] = False,
) -> None:
    """Run the paper's experiments; what is recorded is not run again. Prints every claim with its verdict."""
    from varla.experiments import items as known
    from varla.experiments.runner import reproduce as work
    from varla.experiments.runs import PRESETS
    from varla.ops.arguments import check_choice

    check_device(device)
    check_choice("--preset", preset, tuple(PRESETS))
    chosen = known.choose(items or [])
    size = PRESETS[preset]
    if show_items:
        rows = [(x.name, x.number, x.title, str(len(x.claims)), str(len(x.runs(size)))) for x in chosen]
        show(table(("item", "paper", "what", "claims", f"runs, {preset}"), rows, right=("claims", f"runs, {preset}")))
        return
    view: Board | Lines = Board() if console().is_terminal else Lines()
    with view:
        outcome = work(
            chosen, size, reports=reports, runs=runs, jobs=jobs, device=device, minutes=minutes,
            watch=view.show, say=say,
        )  # fmt: skip
    for item in chosen:
        show(verdicts(item, [claim.judge(outcome.results, size) for claim in item.claims]))
    done = f"{outcome.before} runs were recorded before, {outcome.made} made now, {outcome.left} left"
    say(f"{done}; records in {reports}")
    for name, reason in outcome.failed:
        complain(f"{name} failed: {reason}")
    if outcome.failed:
        raise typer.Exit(EXIT_CODES[FAILED])


def verdicts(item: "Item", findings: Sequence["Finding"]) -> Table:
    """An item's claims with what was found."""
    rows = [
        (claim.id, claim.says, number(claim.paper), spread(found), found.verdict, found.note)
        for claim, found in zip(item.claims, findings, strict=True)
    ]
    headers = ("claim", "what it says", "paper", "ours", "verdict", "note")
    return table(headers, rows, right=("paper", "ours"), title=f"{item.number} {item.title}")
