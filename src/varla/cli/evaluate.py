"""`varla eval`: a trained model on its own task or a changed one."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from varla.cli.kinds import LAB, check_kind
from varla.cli.options import Device, TaskChanges, choose_device
from varla.cli.output import say
from varla.cli.train import report

if TYPE_CHECKING:
    from varla.backbone import Backbone
    from varla.training import RunConfig

CHANGEABLE = ("train.eval_batches", "train.eval_batch_size", "seed")


def evaluate(
    run: Annotated[Path, typer.Argument(help="Folder of the run.", metavar="RUN")],
    settings: TaskChanges = None,
    device: Device = None,
) -> None:
    """Evaluate a run's newest checkpoint, on its own task or a changed one."""
    import torch

    from varla import training

    chosen = torch.device(choose_device(device))
    check_kind(run, LAB, f"score it with `varla score {run / 'model'} TEXT` or `varla harness {run / 'model'}`")
    changed = change(training.Run(run).config(), settings or ())
    model, found = training.trained_model(run)
    check_fits(model, changed)
    say(f"model    {found}")
    report(changed, training.evaluate(model.to(chosen), changed, chosen))


def change(config: "RunConfig", settings: Sequence[str]) -> "RunConfig":
    """The run's settings with changes to what it is evaluated on; the model is as it was trained."""
    from varla import training

    for text in settings:
        key = text.partition("=")[0].strip()
        if not key.startswith("task.") and key not in CHANGEABLE:
            allowed = ", ".join(("task.*", *CHANGEABLE))
            raise ValueError(f"--set {text}: the model stays as it was trained; only {allowed} can be changed")
    return training.from_dict(training.override(config.to_dict(), settings))


def check_fits(model: "Backbone", config: "RunConfig") -> None:
    """Refuse a task with more tokens, or longer sequences, than the model was made for."""
    from varla.training import build_task

    for task in build_task(config).evaluations().values():
        if task.vocab_size > model.config.vocab_size:
            raise ValueError(
                f"the task has {task.vocab_size} tokens, the model knows {model.config.vocab_size}: "
                "lower task.vocab_size"
            )
        if model.positions is not None and task.seq_len > model.config.max_len:
            raise ValueError(
                f"the task's sequences have {task.seq_len} tokens, but the model learned positions for "
                f"{model.config.max_len}: evaluate on shorter ones, or train with "
                f"--set model.max_len={task.seq_len} or --set model.positions=none"
            )
