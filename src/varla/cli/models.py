"""`varla models`: the presets of the model family, their parameters and what their states cost."""

from typing import Annotated

import typer

from varla.cli.output import say, show, table

CONTEXT = 32768


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: varla models --context 1000000")(models)


def models(
    mechanism: Annotated[str, typer.Option(help="The mechanism of all layers.")] = "vla",
    context: Annotated[int, typer.Option(help="Tokens after which the state is measured.")] = CONTEXT,
) -> None:
    """List the presets of varla.models with parameters and state bytes, a softmax cache beside it."""
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
