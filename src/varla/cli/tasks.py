"""`varla tasks`: what can be trained on; `varla tasks show`: one of them, with a sequence."""

import textwrap
from typing import Annotated, Any

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
    say("To train with another: --set task.NAME=VALUE.")
    say("Chance: a guess among all answers. Best: what a perfect reader reaches.")


EXAMPLES = """Example: varla tasks show mqar --n 3 --seed 1

Example: varla tasks show noisy-recall --n 2 --set fillers=4"""


@group.command("show", epilog=EXAMPLES)
def show_task(
    name: Annotated[str, typer.Argument(help="The task's name.")],
    n: Annotated[int | None, typer.Option("--n", help="Number of key-value pairs.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Length of the sequence.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Number of tokens.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the task: power=0.1. May be given many times."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which sequence to draw.")] = 0,
) -> None:
    """Describe a task and show one sequence of it."""
    import torch

    from varla.tasks import make
    from varla.training import override

    options: dict[str, Any] = {"name": name, "n": n, "seq_len": seq_len, "vocab_size": vocab_size}
    given = {key: value for key, value in options.items() if value is not None}
    changed = override({}, changes or ())
    if twice := sorted(given.keys() & changed.keys()):
        raise ValueError(f"--set {twice[0]}={changed[twice[0]]}: {twice[0]} is given already, as {given[twice[0]]!r}")
    task = make(**given, **changed)
    say(textwrap.fill(task.describe(), 100))
    say()
    say(task.example(torch.Generator().manual_seed(seed)))
