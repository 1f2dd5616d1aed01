"""`varla compare`: runs side by side, from their records, and their learning curves."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from varla.cli.kinds import find_runs
from varla.cli.output import console, draw, note, say, show, table
from varla.cli.rows import WORDS, Row, averages, read_row
from varla.cli.streams import write
from varla.runs.metrics import current, is_eval
from varla.runs.writing import naming

if TYPE_CHECKING:
    from varla.report.series import Series

FORMATS = ("table", "csv", "json")
LAST = ("chance", "parameters", "state bytes", "train tokens", "tokens/s", "status")  # columns behind the measured ones


def compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or of many runs, such as a sweep's.", metavar="RUN...")
    ],
    average: Annotated[
        bool, typer.Option("--average", help="Average runs that differ only in their seed: mean ± standard deviation.")
    ] = False,
    form: Annotated[
        str, typer.Option("--format", help="csv and json: every digit, no curves.", metavar="|".join(FORMATS))
    ] = FORMATS[0],
    plot: Annotated[
        Path | None, typer.Option(help="Also draw the curves to FILE: .html (a page), .png or .svg.", metavar="FILE")
    ] = None,
    no_plot: Annotated[bool, typer.Option("--no-plot", help="No curves below the table.")] = False,
    metric: Annotated[
        str | None,
        typer.Option(help="What to draw: loss, eval, ... Default: the first evaluation; loss for language models."),
    ] = None,
) -> None:
    """Compare runs of `train` or of `train-lm` in a table and a plot of their learning curves."""
    from varla.arguments import check_choice
    from varla.report.series import series
    from varla.report.terminal import text_curves

    # Everything that can be refused is, before anything is printed.
    check_choice("--format", form, FORMATS)
    if plot is not None:
        from varla.report.curves import check_target

        check_target(plot)
    folders = find_runs(runs)
    rows = [read_row(name, folder) for name, folder in zip(label(folders), folders, strict=True)]
    check_comparable(rows)
    if average:
        rows = averages(rows)
    drawn = rows[0].metric if metric is None else current(metric)
    curves = {row.name: row.metrics for row in rows}
    try:
        found = series(curves, drawn)
    except ValueError as error:
        if metric is not None or plot is not None:
            raise
        found, missing = {}, str(error)  # not an error: runs without metrics yet can be compared, too
    tell = say if form == "table" else note  # csv and json have standard output for themselves
    if form == "table":
        columns = ["run", *headers(rows)]
        cells = [[row.name, *(row.text(column) for column in columns[1:])] for row in rows]
        show(table(columns, cells, right=[column for column in columns if column not in WORDS]))
    else:
        records = [row.record() for row in rows]
        write(as_csv(records) if form == "csv" else json.dumps(records, indent=2) + "\n")
    chances = {row.cells.get("chance") for row in rows}
    chance = chances.pop() if len(chances) == 1 and is_eval(drawn) else None
    if plot is not None:
        with naming(plot):
            tell(f"plot     {write_plot(plot, rows, found, drawn, chance)}")
    if form == "table" and not no_plot:
        if not found:
            say(f"no plot: {missing}")
            return
        draw(text_curves(found, drawn, chance, width=console().width))
    if found and (plot is not None or not no_plot):
        for row in rows:
            if row.name not in found:
                tell(f"not drawn: {row.name} has not logged {drawn}")


def write_plot(path: Path, rows: Sequence[Row], found: "Series", metric: str, chance: float | None) -> Path:
    """Write the curves: as a page if the name ends in .html, otherwise as a picture."""
    metrics = {row.name: row.metrics for row in rows}
    if path.suffix.lower() != ".html":
        from varla.report.curves import learning_curves, save

        return save(learning_curves(metrics, metric, chance), path)
    from varla.report import comparison, page

    runs = [
        comparison.Compared(
            row.name, {column: row.text(column) for column in headers([row])}, row.settings, row.environments
        )
        for row in rows
    ]
    return page.write(comparison.make(runs, metrics, found, metric, chance), path)


def label(folders: Sequence[Path]) -> list[str]:
    """A name for each folder: its own, or its path where two have the same; the same folder twice is an error."""
    whole = [folder.resolve() for folder in folders]
    if repeated := [str(folder) for i, folder in enumerate(folders) if whole[i] in whole[:i]]:
        raise ValueError(f"{repeated[0]} is given twice")
    names = [folder.name for folder in whole]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]


def check_comparable(rows: Sequence[Row]) -> None:
    """Refuse runs of both commands: an accuracy on a task and a loss on text have nothing in common."""
    for row in rows:
        if row.kind != rows[0].kind:
            raise ValueError(
                f"{rows[0].name} is a run of `varla {rows[0].kind}`, {row.name} of `varla {row.kind}`: "
                "compare them separately"
            )


def headers(rows: Sequence[Row]) -> list[str]:
    """All columns. What is measured stands together, though a run may lack some of it."""
    columns = list(dict.fromkeys(column for row in rows for column in row.cells))
    return sorted(columns, key=lambda column: column in LAST)  # stable: otherwise in their own order


def as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """A line per run below the names of the columns."""
    text = io.StringIO()
    columns = list(dict.fromkeys(column for record in records for column in record))
    lines = csv.DictWriter(text, columns, lineterminator="\n")
    lines.writeheader()
    lines.writerows(records)
    return text.getvalue()
