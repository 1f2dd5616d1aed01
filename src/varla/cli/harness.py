"""`varla harness`: lm-evaluation-harness on a saved model."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from varla.cli.kinds import LM, check_kind
from varla.cli.options import Device, Model, choose_device
from varla.cli.output import show, table


def harness(
    model: Model,
    task: Annotated[list[str], typer.Option(help="A task of the harness. May be repeated.", metavar="NAME")],
    include: Annotated[
        Path | None,
        typer.Option(help="A folder with tasks of your own.", metavar="FOLDER", exists=True, file_okay=False),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Examples of each task.", metavar="N")] = None,
    context: Annotated[
        int | None,
        typer.Option(min=1, help="Most tokens at a time. Default: max_position_embeddings.", metavar="N"),
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Examples at a time.", metavar="N")] = 8,
    device: Device = None,
) -> None:
    """Run tasks of lm-evaluation-harness on a model; needs the extra `eval`."""
    chosen = choose_device(device)
    check_kind(model, LM, f"it holds no language model; evaluate it with `varla eval {model}`")
    if not (model / "config.json").is_file():
        from varla.lm.folder import load_model

        load_model(model)  # raises now: listing the harness's tasks takes 20 seconds
    from varla.lm.harness import evaluate

    _keep_git_quiet()
    found = evaluate(model, task, include=include, limit=limit, context=context, batch_size=batch_size, device=chosen)
    rows = [
        (name, key.partition(",")[0], f"{value:.4f}")
        for name, values in found.items()
        for key, value in values.items()
        if isinstance(value, float)
    ]
    show(table(("task", "metric", "value"), rows, right=("value",)))


def _keep_git_quiet() -> None:
    """The harness asks git about the working directory, and git complains on stderr if that is no repository."""
    with suppress(ImportError):  # `evaluate` says what is missing
        from lm_eval import evaluator

        evaluator.get_git_commit_hash = lambda: None
