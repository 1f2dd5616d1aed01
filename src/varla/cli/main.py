"""All commands together. A new one is a module with a `register(app)` and a line in `COMMANDS`."""

from typing import Annotated

import typer

from varla import __version__
from varla.cli import (
    compare,
    demo,
    evaluate,
    generate,
    harness,
    listings,
    score,
    sweep,
    train,
    train_lm,
)
from varla.cli.errors import Commands

COMMANDS = (
    listings,
    train,
    evaluate,
    compare,
    sweep,
    demo,
    train_lm,
    generate,
    score,
    harness,
)

app = typer.Typer(
    cls=Commands,
    help="Variational Linear Attention: train and compare constant-memory sequence mixers.",
    epilog="Example: varla train --set mechanism=vla --set task.n=8",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in COMMANDS:
    command.register(app)


def _moved() -> None:
    raise ValueError("this command is now `python -m reproduction run | report`, in a clone of the repository")


# The reproduction left the package: its old commands name the new ones, whatever options they get.
for name in ("reproduce", "report"):
    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(name, hidden=True, context_settings=anything)(_moved)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the traceback of an error.")] = False,
) -> None:
    """Variational Linear Attention: train and compare constant-memory sequence mixers."""
