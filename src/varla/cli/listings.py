"""`varla info`, `varla mechanisms`, `varla models`, `varla tasks`: what is installed, and what can be trained."""

import textwrap
from typing import Annotated, Any

import typer

from varla.cli.output import Grid, say, settings, share, show, table

# The layer and the sequence whose state `varla mechanisms` measures.
TOKENS, D_MODEL, HEADS = 1000, 128, 4
TASK_EXAMPLES = """Example: varla tasks show mqar --n 3 --seed 1

Example: varla tasks show noisy-recall --n 2 --set fillers=4"""

tasks_group = typer.Typer()


def info() -> None:
    """Show versions, devices and backends, and why a backend is missing."""
    from varla.runs import environment

    found = environment.describe()
    gpus = found.pop("gpus")
    rows = [(key, "none" if value is None else str(value)) for key, value in found.items()]
    rows += [("gpu", name) for name in gpus] or [("gpu", "none")]
    show(table(("", "value"), rows))
    say()
    show(backend_table())


def backend_table() -> Grid:
    """The backends, and why one is missing."""
    import varla

    rows = [
        (each.name, "yes" if each.available else "no", each.summary, each.reason or "")
        for each in varla.backends().values()
    ]
    return table(("backend", "available", "what it is", "why not"), rows)


def mechanisms() -> None:
    """List the mechanisms with their own options and the size of their state."""
    from varla.layers import MECHANISMS, Layer, build, options_of

    shared = options_of(Layer)
    rows = []
    for name, kind in MECHANISMS.items():
        own = {option: default for option, default in options_of(kind).items() if option not in shared}
        size = build(name, d_model=D_MODEL, n_heads=HEADS).state_size(TOKENS)
        rows.append((name, kind.summary, settings(own), f"{size:,}"))
    show(table(("mechanism", "what it is", "own options", "state bytes"), rows, right=("state bytes",)))
    say(f"State bytes: one layer, one sequence after {TOKENS} tokens, d_model {D_MODEL}, {HEADS} heads, float32.")
    say(f"Options of all: {settings(shared)}. Set one by --set layer.OPTION=VALUE.")


def models(
    mechanism: Annotated[str, typer.Option(help="The mechanism of all layers.")] = "vla",
    context: Annotated[int, typer.Option(help="Tokens after which the state is measured.")] = 32768,
) -> None:
    """List the sizes of varla.models: parameters, state bytes, and those of a softmax cache."""
    import torch

    from varla.arguments import check_count
    from varla.models import PRESETS, VarlaForCausalLM, preset

    check_count("--context", context)
    rows = []
    for name in PRESETS:
        with torch.device("meta"):  # sizes alone: nothing is allocated
            net, other = (VarlaForCausalLM(preset(name, mechanisms=each)) for each in (mechanism, "softmax"))
        made = net.config
        rows.append(
            (
                name,
                f"{made.num_hidden_layers} x {made.hidden_size}",
                f"{made.num_attention_heads} x {made.head_dim}",
                f"{made.vocab_size:,}",
                f"{net.num_parameters():,}",
                f"{net.model.state_size(context):,}",
                f"{other.model.state_size(context):,}",
            )
        )
    numbers = ("vocabulary", "parameters", "state bytes", "softmax state")
    show(table(("preset", "layers", "heads", *numbers), rows, right=numbers))
    say(f"Mechanism {mechanism}. State bytes: one sequence after {context:,} tokens, float32; softmax state: the same")
    say("for softmax layers, whose keys and values grow with the context. In Python: varla.models.preset(NAME).")


@tasks_group.callback(invoke_without_command=True, epilog="Example: varla tasks")
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


@tasks_group.command("show", epilog=TASK_EXAMPLES)
def show_task(
    name: Annotated[str, typer.Argument(help="The task's name.")],
    n: Annotated[int | None, typer.Option("--n", help="Number of key-value pairs.")] = None,
    seq_len: Annotated[int | None, typer.Option(help="Length of the sequence.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="Number of tokens.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting of the task: power=0.1. May be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Which sequence to draw.")] = 0,
) -> None:
    """Describe a task and show one sequence of it."""
    import torch

    from varla.arguments import check_count
    from varla.tasks import make
    from varla.training import override

    check_count("--seed", seed, least=-(2**63))
    options: dict[str, Any] = {"name": name, "n": n, "seq_len": seq_len, "vocab_size": vocab_size}
    given = {key: value for key, value in options.items() if value is not None}
    changed = override({}, changes or ())
    if twice := sorted(given.keys() & changed.keys()):
        raise ValueError(f"--set {twice[0]}={changed[twice[0]]}: {twice[0]} is given already, as {given[twice[0]]!r}")
    task = make(**given, **changed)
    say(textwrap.fill(task.describe(), 100))
    say()
    say(task.example(torch.Generator().manual_seed(seed)))
