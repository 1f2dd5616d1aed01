"""`varla info`: what is installed, what it runs on, which forms of the operators can be used."""

import typer

from varla.cli.output import say, show, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: varla info")(info)


def info() -> None:
    """Show versions, devices and backends, and why a backend is missing."""
    import varla
    from varla.runs import environment

    found = environment.describe()
    gpus = found.pop("gpus")
    rows = [(key, "none" if value is None else str(value)) for key, value in found.items()]
    rows += [("gpu", name) for name in gpus] or [("gpu", "none")]
    show(table(("", "value"), rows))
    backends = [
        (each.name, "yes" if each.available else "no", each.summary, each.reason or "")
        for each in varla.backends().values()
    ]
    say()
    show(table(("backend", "available", "what it is", "why not"), backends))
