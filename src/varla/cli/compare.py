"""`varla compare`: runs side by side, from their records, and their learning curves."""

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varla.cli.output import accuracies, console, draw, say, share, show, table
from varla.runs.metrics import EVAL, current, eval_metric, is_eval
from varla.runs.outcomes import FINISHED

if TYPE_CHECKING:
    from varla.training import Run

EXAMPLES = """Example: varla compare runs/first runs/second

Example: varla compare runs/sweep/* --plot curves.html"""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog=EXAMPLES)(compare)


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Folders of runs.", metavar="RUN...")],
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the curves to FILE: .html, .png or .svg.", metavar="FILE")
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="No curves below the table.")] = False,
    metric: Annotated[
        str | None, typer.Option(help="What to draw: loss, eval, ... Default: the first evaluation logged.")
    ] = None,
) -> None:
    """Compare runs in a table and a plot of their learning curves."""
    from varla.report.series import series
    from varla.report.terminal import text_curves
    from varla.training import Run

    labels = label(runs)
    rows = [summarise(Run(folder)) for folder in runs]
    names = list(dict.fromkeys(name for row in rows for name in row["accuracies"]))
    numbers = ("seed", "steps", *names, "chance", "parameters", "state bytes", "tokens/s")
    headers = ("run", "mechanism", "task", *numbers, "status")
    show(
        table(headers, [(each, *cells(row, names)) for each, row in zip(labels, rows, strict=True)], right=numbers),
    )
    if no_plot and plot is None:
        return
    chances = {row["chance"] for row in rows}
    drawn = current(metric) if metric else eval_metric(names[0] if names else EVAL)
    common = chances.pop() if len(chances) == 1 and is_eval(drawn) else None
    metrics = {each: row["metrics"] for each, row in zip(labels, rows, strict=True)}
    try:
        found = series(metrics, drawn)
    except ValueError as error:
        if metric or plot:
            raise
        say(f"no plot: {error}")  # not an error: runs without metrics yet can be compared, too
        return
    if not no_plot:
        draw(text_curves(found, drawn, common, width=console().width))
    if plot is not None:
        from varla.report.curves import learning_curves, save

        say(f"plot     {save(learning_curves(metrics, drawn, common), plot)}")
    for each in labels:
        if each not in found:
            say(f"not drawn: {each} has not logged {drawn}")


def label(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, or its path where two have the same; the same folder twice is an error."""
    whole = [folder.resolve() for folder in folders]
    if repeated := [str(folder) for i, folder in enumerate(folders) if whole[i] in whole[:i]]:
        raise ValueError(f"{repeated[0]} is given twice")
    names = [folder.name for folder in whole]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def summarise(run: "Run") -> dict[str, Any]:
    """What the table shows of a run. The metrics are newer than the record while it runs, and after a kill."""
    config, record, metrics = run.config(), run.record(), run.metrics()
    latest: dict[str, Any] = {}
    for entry in metrics:
        latest.update(entry)
    speeds = [entry["tokens/s"] for entry in metrics if "tokens/s" in entry]
    task = dict(config.task)
    name = task.pop("name", "")
    return {
        "mechanism": config.mechanism,
        "task": " ".join([str(name), *(f"{key}={value}" for key, value in task.items())]),
        "seed": config.seed,
        "steps": record.get("steps") if record.get("status") == FINISHED else latest.get("step", 0),
        "accuracies": accuracies(latest),
        "chance": record.get("chance"),
        "parameters": record.get("parameters"),
        "state bytes": record.get("state bytes"),
        "tokens/s": statistics.median(speeds) if speeds else None,
        "status": record.get("status", "no record"),
        "metrics": metrics,
    }


def cells(row: dict[str, Any], names: Sequence[str]) -> list[str]:
    """The row as text, in the order of the columns."""

    def whole(key: str) -> str:
        return "" if row[key] is None else f"{row[key]:,.0f}"

    return [
        row["mechanism"],
        row["task"],
        str(row["seed"]),
        whole("steps"),
        *(share(row["accuracies"].get(name)) for name in names),
        share(row["chance"]),
        whole("parameters"),
        whole("state bytes"),
        whole("tokens/s"),
        row["status"],
    ]
