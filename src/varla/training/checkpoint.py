"""Checkpoints: safetensors and JSON only. Written aside, then renamed: a checkpoint is either complete or absent.

    checkpoints/step-00000500/   model.safetensors, optimizer.safetensors, state.json

Nothing is pickled, so reading a checkpoint runs no code from it.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

_PREFIX = "step-"


def save(
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: Optimizer,
    generator: torch.Generator,
    *,
    seconds: float = 0.0,
) -> Path:
    """Write the checkpoint after `step` steps and `seconds` of training. Keeps the newest two."""
    target = folder / f"{_PREFIX}{step:08d}"
    aside = folder / f".{target.name}.{os.getpid()}"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    weights = {name: x.detach().cpu().contiguous() for name, x in model.state_dict().items()}
    save_file(weights, aside / "model.safetensors")
    save_file(_optimizer_tensors(model, optimizer), aside / "optimizer.safetensors")
    state = {
        "step": step,
        "seconds": seconds,
        "device": generator.device.type,
        "generator": generator.get_state().numpy().tobytes().hex(),
    }
    (aside / "state.json").write_text(json.dumps(state))
    for path in aside.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(target, ignore_errors=True)
    os.replace(aside, target)
    for old in all_in(folder)[:-2]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def all_in(folder: Path) -> list[Path]:
    """Complete checkpoints, oldest first."""
    return sorted(path for path in folder.glob(f"{_PREFIX}*") if path.is_dir()) if folder.is_dir() else []


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint."""
    found = all_in(folder)
    return found[-1] if found else None


def load_weights(path: Path, model: nn.Module) -> None:
    """Load only the weights. Raises ValueError, naming the file, if it is damaged or of another model."""
    file = path / "model.safetensors"
    wanted = {name: list(x.shape) for name, x in model.state_dict().items()}
    weights = _read(file)
    found = {name: list(x.shape) for name, x in weights.items()}
    if wanted != found:
        different = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
        raise ValueError(f"{file} is of another model: {', '.join(different[:5])} differ in name or shape")
    model.load_state_dict(weights)


def load(path: Path, model: nn.Module, optimizer: Optimizer, generator: torch.Generator) -> tuple[int, float]:
    """Load everything that `save` wrote; returns (steps done, seconds of training)."""
    load_weights(path, model)
    file = path / "optimizer.safetensors"
    moments = _read(file)
    for name, parameter in model.named_parameters():
        entries = {key.rsplit("/", 1)[1]: x for key, x in moments.items() if key.rsplit("/", 1)[0] == name}
        if not entries:
            raise ValueError(f"{file} holds no moments of {name}")
        counted = parameter.device if optimizer.defaults.get("fused") else torch.device("cpu")
        optimizer.state[parameter] = {
            key: x.to(counted if key == "step" else parameter.device) for key, x in entries.items()
        }
    try:
        state: dict[str, Any] = json.loads((path / "state.json").read_text())
        step, seconds, device = int(state["step"]), float(state["seconds"]), str(state["device"])
        raw = bytes.fromhex(state["generator"])
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{path / 'state.json'} is damaged: {error}") from error
    if device != generator.device.type:
        raise ValueError(f"{path} was made on {device} and cannot be resumed on {generator.device.type}")
    generator.set_state(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
    return step, seconds


def _optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = value.detach().cpu().contiguous()
    return tensors


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
