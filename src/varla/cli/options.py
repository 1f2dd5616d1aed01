"""Arguments and options that several commands share."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from varla.box import MODELS, model_folder

DEVICES = ("cpu", "cuda")


def place(text: str) -> Path:
    """The path that an option gives. An empty one, from an unset shell variable, would mean the working folder."""
    if not text:
        raise typer.BadParameter("the name is empty")
    return Path(text)


def _changes(example: str) -> Any:
    return typer.Option("--set", metavar="KEY=VALUE", help=f"Change a setting by its path: {example}. May be repeated.")


Changes = Annotated[list[str] | None, _changes("train.lr=1e-3")]
LMChanges = Annotated[list[str] | None, _changes("train.learning_rate=1e-3")]
TaskChanges = Annotated[list[str] | None, _changes("task.n=4")]  # of a trained model, only the task can change
ShowConfig = Annotated[
    bool, typer.Option("--show-config", help="Print every setting with its value and meaning, as YAML, and exit.")
]
Config = Annotated[
    Path | None, typer.Argument(help="Settings as YAML. Missing ones have their defaults.", metavar="CONFIG")
]
BOXED = f"or a model in the box by its name: {', '.join(MODELS)}"
Model = Annotated[
    Path,
    typer.Argument(help=f"Folder of a model, with its tokenizer, {BOXED}.", metavar="MODEL", parser=model_folder),
]
Resume = Annotated[
    Path | None,
    typer.Option(help="Resume the run in this folder from its newest checkpoint.", metavar="FOLDER", parser=place),
]
Device = Annotated[str | None, typer.Option(help="cpu or cuda. Default: a GPU if there is one.", metavar="cpu|cuda")]
On = Annotated[
    str | None,
    typer.Option(
        help="A Ray cluster instead of this machine: `ray` for RAY_ADDRESS or a cluster that runs here, or an address "
        "(HOST:PORT, ray://HOST:PORT). The runs' folder must be on storage that all nodes share.",
        metavar="ray|ADDRESS",
    ),
]


def check_device(name: str | None, on: str | None = None) -> str | None:
    """Refuse a device that is unknown or not there: nothing falls back to another in silence.

    `on` a cluster, other machines have the devices.
    """
    if name is not None and name not in DEVICES:
        hint = "; choose one GPU of several by CUDA_VISIBLE_DEVICES" if name.startswith("cuda:") else ""
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {name!r}{hint}")
    if name == "cuda" and on is None:
        import torch

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no CUDA device here")
    return name


def choose_device(name: str | None) -> str:
    """The device that was asked for, or a GPU if there is one."""
    import torch

    return check_device(name) or ("cuda" if torch.cuda.is_available() else "cpu")


def check_resume(resume: Path | None, config: Path | None, settings: list[str] | None, out: Path | None) -> None:
    """Refuse settings beside --resume."""
    if resume is not None and (config or settings or out):
        raise ValueError("--resume uses the run's own settings: give no CONFIG, --set or --out")


def speaks() -> bool:
    """Whether this process prints: of several that `torchrun` starts, the first does."""
    return os.environ.get("RANK", "0") == "0"
