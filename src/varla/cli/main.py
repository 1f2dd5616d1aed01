"""All commands together. A new one is a function in a module of its own and a line here."""

from collections.abc import Callable
from typing import Annotated

import typer
from rich.markup import escape

from varla import __version__
from varla.cli import compare, demo, doctor, evaluate, generate, harness, listings, score, sweep, train, train_lm, watch
from varla.cli.errors import Commands

app = typer.Typer(
    cls=Commands,
    help="Variational Linear Attention: train and compare constant-memory sequence mixers.",
    epilog="Example: varla train --set mechanism=vla --set task.n=8",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(command: Callable[..., None], *examples: str, name: str | None = None) -> None:
    app.command(name, epilog="\n\n".join(f"Example: {escape(each)}" for each in examples))(command)


# The commands, in the order of the help, with examples of their use.
_add(listings.info, "varla info")
_add(doctor.doctor, "varla doctor", "varla doctor --quick", "varla doctor --json > doctor.json")
_add(listings.mechanisms, "varla mechanisms")
_add(listings.models, "varla models --context 1000000")
app.add_typer(listings.tasks_group, name="tasks")
_add(
    train.train,
    "varla train --set mechanism=deltanet --set task.n=16",
    "varla train --show-config > config.yaml",
    "varla train config.yaml --out runs/first",
    "varla train --resume runs/first",
)
_add(evaluate.evaluate, "varla eval runs/first --set task.n=4", name="eval")
_add(
    compare.compare,
    "varla compare runs/first runs/second",
    "varla compare runs/sweep --average --plot curves.html",
    "varla compare runs/sweep --format csv > runs.csv",
)
_add(
    watch.watch,
    "varla watch runs/first --seed 3",
    "varla watch runs/first runs/second --out both.html",
    'varla watch runs/book/model --text "It was a dark and stormy night."',
)
_add(sweep.sweep, "varla sweep grid.yaml --out runs/sweep --jobs 4", *sweep.EXAMPLE)
_add(demo.demo, "varla demo --out runs/demo")
_add(
    train_lm.train_lm,
    "varla train-lm --set data.train=book.txt --set model.preset=5m --out runs/book",
    "varla train-lm --show-config > config.yaml",
    "varla train-lm config.yaml --out runs/first",
    "varla train-lm --resume runs/first",
    "torchrun --nproc-per-node 2 -m varla train-lm config.yaml --out runs/first",
    name="train-lm",
)
_add(
    generate.generate,
    'varla generate runs/book/model --prompt "It was a dark and" --temperature 0.8',
    "varla generate runs/book/model --prompt-file chapter.txt --save-state chapter.state",
    "varla generate runs/book/model --state chapter.state --tokens 500",
    "cat chapter.txt | varla generate runs/book/model -",
)
_add(score.score, "varla score runs/book/model other.txt --context 512 --context all")
_add(harness.harness, "varla harness runs/book/model --task lambada_openai --limit 100")


def _moved() -> None:
    raise ValueError("this command is now `python -m reproduction run | report`, in a clone of the repository")


# The reproduction left the package: its old commands name the new ones, whatever options they get.
for old in ("reproduce", "report"):
    anything = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
    app.command(old, hidden=True, context_settings=anything)(_moved)


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", "--traceback", envvar="VARLA_DEBUG", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Variational Linear Attention: train and compare constant-memory sequence mixers."""
