"""The Trainer's checkpoints, looked at before they are gone on from."""

import json
import zipfile
from pathlib import Path
from typing import Any

import safetensors

from varla.training.run import RunError

_PICKLED = (".pt", ".pth", ".bin")  # zip archives, as torch.save writes them: their directory is at the end


def state_of(checkpoint: str | Path) -> dict[str, Any]:
    """What the Trainer wrote down beside a checkpoint."""
    file = Path(checkpoint) / "trainer_state.json"
    try:
        found = dict(json.loads(file.read_text()))
        int(found["global_step"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(checkpoint, file.name) from error
    return found


def steps_of(checkpoint: str | Path) -> int:
    """Steps that a checkpoint was made after."""
    return int(state_of(checkpoint)["global_step"])


def check_checkpoint(checkpoint: str | Path, *, optimizer: bool = True) -> None:
    """Raise a RunError unless everything is there, and nothing was cut short. No tensor is read.

    `optimizer`: its state and the schedule's must be there: without them the Trainer begins with new ones.
    """
    state_of(checkpoint)
    folder = Path(checkpoint)
    for pattern in ("optimizer*", "scheduler.pt") if optimizer else ():
        if not any(folder.glob(pattern)):
            raise _damaged(checkpoint, pattern.rstrip("*"))
    for file in sorted(folder.iterdir()):
        if file.suffix == ".safetensors":
            try:
                with safetensors.safe_open(file, framework="pt"):
                    pass
            except safetensors.SafetensorError as error:
                raise _damaged(checkpoint, file.name) from error
        elif file.suffix in _PICKLED and not zipfile.is_zipfile(file):
            raise _damaged(checkpoint, file.name)


def _damaged(checkpoint: str | Path, name: str) -> RunError:
    return RunError(
        f"{checkpoint} is damaged: {name} is missing or was cut short. Remove this folder to go on from the checkpoint "
        "before it, or from the beginning if there is none"
    )
