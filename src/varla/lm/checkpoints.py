"""The Trainer's checkpoints: sealed with checksums once they are complete, and checked before a run resumes from one.

The Trainer writes into the folder itself, so a kill leaves half a checkpoint. A checkpoint without a seal is skipped.
"""

import hashlib
import json
import logging
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors

from varla.runs.folder import RunError
from varla.runs.writing import remove, sync, write_aside

SEAL = "checksums.json"
_PICKLED = (".pt", ".pth", ".bin")  # torch.save writes zip archives, whose directory is at the end
_log = logging.getLogger(__name__)


def state_of(checkpoint: str | Path) -> dict[str, Any]:
    """The Trainer's own state: steps done and what was logged."""
    file = Path(checkpoint) / "trainer_state.json"
    try:
        found = dict(json.loads(file.read_text()))
        found["global_step"] = int(found["global_step"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise _damaged(checkpoint, file.name) from error
    return found


def seal(checkpoint: Path) -> None:
    """Write the checksums of all files, once all of them are on the disk. The checkpoint is then complete."""
    for file in _files(checkpoint):
        sync(file)
    write_aside(checkpoint / SEAL, json.dumps(_checksums(checkpoint), indent=2) + "\n")


def newest(folder: Path, *, optimizer: bool = True) -> Path | None:
    """The newest complete checkpoint of a run; None if there is none. Raises a RunError if it is damaged.

    `optimizer`: as for `check_checkpoint`.
    """
    for checkpoint in reversed(all_in(folder)):
        try:
            check_checkpoint(checkpoint, optimizer=optimizer)
        except RunError:
            if (checkpoint / SEAL).exists():
                raise
        else:
            return checkpoint
    return None


def remove_after(folder: Path, checkpoint: Path | None) -> None:
    """Remove the checkpoints newer than this one, which were not saved completely, and say so."""
    found = all_in(folder)
    unfinished = found[0 if checkpoint is None else found.index(checkpoint) + 1 :]
    for each in unfinished:
        remove(each)
    if unfinished:
        names = ", ".join(each.name for each in unfinished)
        start = "the beginning" if checkpoint is None else checkpoint.name
        _log.warning("%s: %s was not saved completely and is removed; resuming from %s", folder, names, start)


def all_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, complete or not, oldest first."""
    found = [path for path in folder.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted((path for path in found if path.is_dir()), key=lambda path: int(path.name.split("-")[1]))


def check_checkpoint(checkpoint: str | Path, *, optimizer: bool = True) -> None:
    """Raise a RunError if a file is missing, was cut short, or is not what was saved.

    `optimizer`: also require the state of optimizer and schedule. Without it, the Trainer silently begins a new one.
    """
    folder = Path(checkpoint)
    state_of(folder)
    for pattern in ("optimizer*", "scheduler.pt") if optimizer else ():
        if not any(folder.glob(pattern)):
            raise _damaged(folder, pattern.rstrip("*"))
    for file in _files(folder):
        if file.suffix == ".safetensors":
            try:
                with safetensors.safe_open(file, framework="pt"):
                    pass
            except safetensors.SafetensorError as error:
                raise _damaged(folder, file.name) from error
        elif file.suffix in _PICKLED and not zipfile.is_zipfile(file):
            raise _damaged(folder, file.name)
    if (folder / SEAL).exists():
        _check_seal(folder)


@contextmanager
def saving(target: Path) -> Iterator[None]:
    """Name what could not be saved. The Trainer's own errors, such as those of a full disk, name no file."""
    try:
        yield
    except (OSError, RuntimeError, safetensors.SafetensorError) as error:
        reason = str(error).strip().splitlines()
        raise RunError(
            f"{target} cannot be written: {reason[0] if reason else type(error).__name__}. What was saved before is "
            "kept: the run can be resumed once there is room"
        ) from error


def _check_seal(folder: Path) -> None:
    try:
        wanted = dict(json.loads((folder / SEAL).read_text()))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise _damaged(folder, SEAL) from error
    found = _checksums(folder)
    for name in sorted({*wanted, *found}):
        if wanted.get(name) != found.get(name):
            raise _damaged(folder, name)


def _checksums(folder: Path) -> dict[str, str]:
    found = {}
    for file in _files(folder):
        with file.open("rb") as opened:
            found[file.relative_to(folder).as_posix()] = hashlib.file_digest(opened, "sha256").hexdigest()
    return found


def _files(folder: Path) -> list[Path]:
    """All files of a checkpoint but its seal."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return [path for path in found if path.name != SEAL and not path.name.startswith(f".{SEAL}.")]


def _damaged(checkpoint: str | Path, name: str) -> RunError:
    return RunError(
        f"{checkpoint} is damaged: {name} is missing, was cut short or was changed. Remove this folder to resume from "
        "the checkpoint before it, or from the beginning if there is none"
    )
