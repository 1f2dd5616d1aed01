"""The Trainer's checkpoints, checked before a run resumes from one."""

import json
import zipfile
from pathlib import Path
from typing import Any

import safetensors

from varla.runs.folder import RunError

_PICKLED = (".pt", ".pth", ".bin")  # torch.save writes zip archives, whose directory is at the end


def state_of(checkpoint: str | Path) -> dict[str, Any]:
    """The Trainer's own state: steps done and what was logged."""
    file = Path(checkpoint) / "trainer_state.json"
    try:
        found = dict(json.loads(file.read_text()))
        found["global_step"] = int(found["global_step"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise _damaged(checkpoint, file.name) from error
    return found


def check_checkpoint(checkpoint: str | Path, *, optimizer: bool = True) -> None:
    """Raise a RunError if a file is missing or was cut short. No tensor is read.

    `optimizer`: also require the state of optimizer and schedule. Without it, the Trainer silently begins a new one.
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
        f"{checkpoint} is damaged: {name} is missing or was cut short. Remove this folder to resume from the "
        "checkpoint before it, or from the beginning if there is none"
    )
