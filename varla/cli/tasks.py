"""`varla tasks`: what can be trained on; `varla tasks show`: one of them, with a sequence."""

import textwrap
from typing import Annotated

import typer

from varla.cli.output import say, settings, share, show, table

group = typer.Typer()


def register(app: typer.Typer) -> None:
    """Add the command and its subcommand."""
    app.add_typer(group, name="tasks")


@group.callback(invoke_without_command=True, epilog="Example: varla tasks")
def tasks(context: typer.Context) -> None:
    """List the tasks; `varla tasks show NAME` shows one with an example."""
    if context.invoked_subcommand is not None:
        return
    from varla.tasks import make, names

    rows = []
    for name in names():
        task = make(name)
        own = {key: value for key, value in task.settings().items() if key != "name"}
        rows.append((name, settings(own), share(task.chance), share(task.best)))
    show(table(("task", "default settings", "chance", "best"), rows, right=("chance", "best")))
    say("Set one by --set task.NAME=VALUE. Chance: a guess among all answers. Best: what a perfect reader reaches.")


@group.command("show", epilog="Example: varla tasks show mqar --n 3 --seed 1")
def show_task(
    name: Annotated[str, typer.Argument(help="The task's name.")],
    n: Annotated[int | None, typer.Option("--n", help="Number of key-value pairs.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Length of the sequence.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Number of tokens.")] = None,
    seed: Annotated[int, typer.Option(help="Which sequence to draw.")] = 0,
) -> None:
    """Describe a task and show one sequence of it."""
    import torch

    from varla.tasks import make

    given = {"n": n, "seq_len": seq_len, "vocab_size": vocab_size}
    task = make(name, **{key: value for key, value in given.items() if value is not None})
    say(textwrap.fill(task.describe(), 100))
    say()
    say(task.example(torch.Generator().manual_seed(seed)))
