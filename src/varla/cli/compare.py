"""`varla compare`: runs side by side, from their records, and their learning curves."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varla.cli.output import accuracies, console, draw, say, share, show, table, whole
from varla.runs.metrics import EVAL, current, eval_metric, is_eval, newest
from varla.runs.outcomes import FINISHED

if TYPE_CHECKING:
    from varla.training import Run

# Columns before and after those of the evaluations.
BEFORE = ("mechanism", "task", "seed", "steps")
AFTER = ("chance", "parameters", "state bytes", "tokens/s", "status")
WORDS = ("mechanism", "task", "status")  # the other columns hold numbers


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
    metrics = {name: Run(folder).metrics() for name, folder in zip(labels, runs, strict=True)}
    rows = [summarise(Run(folder), metrics[name]) for name, folder in zip(labels, runs, strict=True)]
    names = list(dict.fromkeys(name for row in rows for name in row if name not in (*BEFORE, *AFTER)))
    headers = (*BEFORE, *names, *AFTER)
    cells = [[name, *(row.get(header, "") for header in headers)] for name, row in zip(labels, rows, strict=True)]
    show(table(("run", *headers), cells, right=[each for each in headers if each not in WORDS]))
    if no_plot and plot is None:
        return
    chances = {Run(folder).record().get("chance") for folder in runs}
    drawn = current(metric) if metric else eval_metric(names[0] if names else EVAL)
    common = chances.pop() if len(chances) == 1 and is_eval(drawn) else None
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


def summarise(run: "Run", metrics: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """A run's cells by column. The metrics are newer than the record while it runs, and after a kill."""
    config, record, latest = run.config(), run.record(), newest(metrics)
    speeds = [entry["tokens/s"] for entry in metrics if "tokens/s" in entry]
    task = dict(config.task)
    name = task.pop("name", "")
    return {
        "mechanism": config.mechanism,
        "task": " ".join([str(name), *(f"{key}={value}" for key, value in task.items())]),
        "seed": str(config.seed),
        "steps": whole(record.get("steps") if record.get("status") == FINISHED else latest.get("step", 0)),
        **{name: share(value) for name, value in accuracies(latest).items()},
        "chance": share(record.get("chance")),
        "parameters": whole(record.get("parameters")),
        "state bytes": whole(record.get("state bytes")),
        "tokens/s": whole(statistics.median(speeds) if speeds else None),
        "status": record.get("status", "no record"),
    }
