"""Options that several commands share."""

from typing import Annotated

import typer

DEVICES = ("cpu", "cuda")

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change a setting, by its path: train.lr=1e-3. May be given many times."
    ),
]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda; left out, a GPU where there is one.", metavar="cpu|cuda")
]


def check_device(name: str | None) -> str | None:
    """Refuse a device that is unknown or not there: nothing falls back to another in silence."""
    if name is not None and name not in DEVICES:
        hint = "; choose one GPU of several by CUDA_VISIBLE_DEVICES" if name.startswith("cuda:") else ""
        raise ValueError(f"--device must be one of {', '.join(DEVICES)}, got {name!r}{hint}")
    if name == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ValueError("--device cuda: PyTorch finds no CUDA device here")
    return name
