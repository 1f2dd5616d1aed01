"""`varla demo`: seven contenders learn associative recall; a table, sentences, curves, and two pages at the end."""

from pathlib import Path
from typing import Annotated

import typer

from varla.cli.options import place
from varla.cli.output import console, draw, say, show, table


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the runs, the picture and the pages.", metavar="FOLDER", parser=place)
    ] = Path("runs/demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each run.")] = 800,
    seed: Annotated[int, typer.Option(help="The first seed of weights and data; the next ones follow it.")] = 42,
) -> None:
    """Train VLA and its rivals, all with the same treatment, to recall pairs, on the CPU, in a few minutes."""
    from varla import demo as recall
    from varla.cli.sweep import progress
    from varla.cli.watch import watch as write_watch
    from varla.report.series import series
    from varla.report.terminal import text_curves
    from varla.runs.metrics import EVAL

    count, pairs, seeds = len(recall.CONTENDERS), recall.PAIRS, recall.SEEDS
    say(f"{count} contenders learn to recall {pairs} pairs, with {seeds} seeds each, on the CPU.")
    say("All have the same data, learning rate, model and protocol ('tuned'). About four minutes on two idle cores.")
    with progress(parts=1) as watch:
        results = recall.run(out, steps=steps, seed=seed, watch=watch)
    say("drawing the picture and the page")
    written = recall.write(results, out)
    chance = float(results[0].runs[0].record["chance"])
    draw(text_curves(series({each.name: each.curve() for each in results}, EVAL), EVAL, chance, width=console().width))
    headers = list(results[0].row())
    show(table(headers, [list(each.row().values()) for each in results], right=headers[1:]))
    for sentence in recall.sentences(results):
        say(sentence)
    say(f"picture  {written['curves']}")
    say(f"page     {written['page']}")
    say(f"what the memories of {' and '.join(recall.WATCHED)} hold, token by token:")
    one, other = (next(each.runs[0].folder for each in results if each.name == name) for name in recall.WATCHED)
    write_watch(one, other, seed=recall.EXAMPLE, out=out / recall.WATCH)
