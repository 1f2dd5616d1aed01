"""`varla demo`: the four mechanisms learn associative recall; a table, a picture, and two pages at the end."""

from pathlib import Path
from typing import Annotated

import typer

from varla.cli.options import place
from varla.cli.output import say, show, table


def demo(
    out: Annotated[
        Path, typer.Option(help="Folder for the runs, the picture and the pages.", metavar="FOLDER", parser=place)
    ] = Path("runs/demo"),
    steps: Annotated[int, typer.Option(min=1, help="Training steps of each mechanism.")] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of weights and data.")] = 42,
) -> None:
    """Train VLA and three others to recall eight pairs, on the CPU, in a few minutes."""
    from varla import demo as recall
    from varla.cli.sweep import progress
    from varla.cli.watch import watch as write_watch

    say("Four mechanisms learn multi-query associative recall (8 pairs), preset 'paper', on the CPU.")
    say("Learning rate 1e-3: the paper's 3e-4 needs more steps than a demo has.")
    say("Training takes a few minutes on two cores.")
    with progress(parts=10) as watch:
        results = recall.run(out, steps=steps, seed=seed, watch=watch)
    say("drawing the picture and the page")
    written = recall.write(results, out)
    headers = list(results[0].row())
    rows = [list(each.row().values()) for each in results]
    show(table(headers, rows, right=headers[1:], title=f"after {steps} steps"))
    say(recall.sentence(results))
    say(f"picture  {written['curves']}")
    say(f"page     {written['page']}")
    say("what the memories of VLA and linear attention hold, token by token:")
    write_watch(out / "runs" / "vla", out / "runs" / "linear", out=out / recall.WATCH)
