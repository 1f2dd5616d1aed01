"""Where a run's metrics go beside its own folder: the names that `report_to` may hold, and Weights & Biases.

wandb is imported only if it is asked for. Its own environment variables work: WANDB_MODE=offline, WANDB_PROJECT, ...
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from varla.arguments import check_choice
from varla.runs.folder import RunError, read_json, write_json

TENSORBOARD, WANDB, NONE = "tensorboard", "wandb", "none"
WANDB_FILE = "wandb.json"  # in a run's folder: the id of its run of wandb's
PROJECT = "varla"  # unless WANDB_PROJECT names another


def report_names(name: str, value: str | list[Any]) -> list[str]:
    """The reports that a setting called `name` asks for: "none", one of them, or a list."""
    if isinstance(value, str):
        check_choice(name, value, (TENSORBOARD, WANDB, NONE))
        return [] if value == NONE else [value]
    for each in value:
        check_choice(f"each of {name}", each, (TENSORBOARD, WANDB))
    return value


def check_wandb(asks: str) -> None:
    """Raise a ValueError unless wandb can be imported. `asks` is the setting that asks for it."""
    missing = f"{asks} asks for wandb, which is not installed: pip install wandb"
    try:
        import wandb
    except ImportError as error:
        if error.name != WANDB:
            raise ValueError(f"{asks} asks for wandb, which cannot be imported: {error}") from error
        raise ValueError(missing) from None
    if not hasattr(wandb, "init"):  # a folder called wandb, as wandb leaves them, is an empty package
        raise ValueError(missing)


def start_wandb(folder: Path, settings: Mapping[str, Any], name: str | None = None) -> Any:
    """A run of wandb's. A run's folder keeps its id: a resumed run continues the same one.

    `name` is shown on wandb's pages; by default that of the folder.
    """
    import wandb

    file = folder / WANDB_FILE
    kept = read_json(file).get("id")
    if kept is None:
        kept = secrets.token_hex(4)
        write_json(file, {"id": kept})
    elif not isinstance(kept, str):
        raise RunError(f"{file} is damaged: `id` must be text, got {kept!r}")
    project = os.environ.get("WANDB_PROJECT", PROJECT)
    try:
        return wandb.init(
            project=project, name=name or folder.resolve().name, id=kept, resume="allow", dir=str(folder),
            config=dict(settings),
        )  # fmt: skip
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"wandb cannot begin: {reason} (WANDB_MODE=offline needs no account)") from error


def finish_wandb(run: Any, finished: bool) -> None:
    """End a run of wandb's. One that is not finished is shown as failed until it is resumed."""
    run.finish(exit_code=0 if finished else 1)


@contextmanager
def wandb_run(folder: Path, settings: Mapping[str, Any], name: str | None = None) -> Iterator[None]:
    """As `start_wandb`, for code that logs to the current run of wandb's."""
    run, finished = start_wandb(folder, settings, name), False
    try:
        yield
        finished = True
    finally:
        finish_wandb(run, finished)
