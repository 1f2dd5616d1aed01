"""`varla mechanisms`: what can be trained, its options, what its state costs."""

import typer

from varla.cli.output import say, settings, show, table

TOKENS, D_MODEL, HEADS = 1000, 128, 4


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: varla mechanisms")(mechanisms)


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
