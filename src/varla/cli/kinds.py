"""Two commands train: `train` a model on a synthetic task, `train-lm` a language model. Which one made a folder?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

LAB, LM = "train", "train-lm"  # the commands


def kind_of(config: dict[str, Any]) -> str:
    """The command that wrote these settings: only a language model has a tokenizer."""
    return LM if "tokenizer" in config else LAB


def check_kind(folder: Path, wanted: str, instead: str) -> None:
    """Raise a ValueError that says what to do `instead` if the folder holds a run of the other command."""
    from varla.runs.folder import RunFolder

    run = RunFolder(folder)
    if run.config_file.is_file() and (found := kind_of(run.read_config())) != wanted:
        raise ValueError(f"{folder} is a run of `varla {found}`: {instead}")


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """The folders of runs: those given, and all runs in those that hold none themselves, such as a sweep's."""
    found: list[Path] = []
    for folder in folders:
        if (folder / "config.yaml").is_file():
            found.append(folder)
            continue
        inside = [file.parent for depth in ("*", "*/*") for file in sorted(folder.glob(f"{depth}/config.yaml"))]
        if not inside:
            above = f"; did you mean {folder.parent}?" if (folder.parent / "config.yaml").is_file() else ""
            raise ValueError(f"{folder} holds no run: there is no config.yaml in it, nor in a folder of it{above}")
        found += inside
    return found
