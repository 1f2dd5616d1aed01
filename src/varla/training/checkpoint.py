"""Checkpoints: safetensors and JSON only. Written aside, then renamed: a checkpoint is either complete or absent.

    checkpoints/step-00000500/   model.safetensors, optimizer.safetensors, state.json

Nothing is pickled, so reading a checkpoint runs no code from it. state.json holds checksums of both tensor files and of
itself: what is read is what was saved, or an error that names the file.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.optim import Optimizer

from varla.files import digest
from varla.ops.state import write_safetensors
from varla.runs.writing import naming, remove, written_aside

_PREFIX = "step-"
_MODEL, _OPTIMIZER, _STATE = "model.safetensors", "optimizer.safetensors", "state.json"
_COUNT, _MOMENTS = "step", ("exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter
_KEYS = {"step": int, "seconds": float, "device": str, "generator": str, _MODEL: str, _OPTIMIZER: str, "checksum": str}


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
    state: dict[str, Any] = {
        "step": step,
        "seconds": float(seconds),
        "device": generator.device.type,
        "generator": generator.get_state().numpy().tobytes().hex(),
    }
    with written_aside(target) as aside:
        for name, tensors in ((_MODEL, model.state_dict()), (_OPTIMIZER, _optimizer_tensors(model, optimizer))):
            with naming(target / name):
                write_safetensors(aside / name, tensors, {})
            state[name] = digest(tensors)
        with naming(target / _STATE):
            (aside / _STATE).write_text(json.dumps({**state, "checksum": _checksum(state)}))
    for old in all_in(folder)[:-2]:
        remove(old)
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
    model.load_state_dict(_weights(path, model, _state(path)))


def load(path: Path, model: nn.Module, optimizer: Optimizer, generator: torch.Generator) -> tuple[int, float]:
    """Load everything that `save` wrote; returns (steps done, seconds of training).

    Everything is read and checked before anything is changed.
    """
    state = _state(path)
    if state["device"] != generator.device.type:
        raise ValueError(f"{path} was made on {state['device']} and cannot be resumed on {generator.device.type}")
    weights, moments = _weights(path, model, state), _moments(path, model, optimizer, state)
    _restore(generator, path / _STATE, state["generator"])
    model.load_state_dict(weights)
    for parameter, entries in moments.items():
        optimizer.state[parameter] = entries
    return state["step"], state["seconds"]


def _state(path: Path) -> dict[str, Any]:
    """state.json, with every value of its type and in its range."""
    file = path / _STATE
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: {error}") from error
    if not isinstance(found, dict) or {key: type(value) for key, value in found.items()} != _KEYS:
        raise ValueError(f"{file} is damaged: it must hold {', '.join(_KEYS)} and nothing else")
    checksum = found.pop("checksum")
    if checksum != _checksum(found):
        raise ValueError(f"{file} is damaged: it does not hold what was saved")
    if found["step"] < 0 or path.name != f"{_PREFIX}{found['step']:08d}":
        raise ValueError(f"{file} is of step {found['step']}, its folder is {path.name}")
    if not (math.isfinite(found["seconds"]) and found["seconds"] >= 0):
        raise ValueError(f"{file} is damaged: seconds must be a time, got {found['seconds']}")
    return found


def _checksum(state: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _weights(path: Path, model: nn.Module, state: Mapping[str, Any]) -> dict[str, Tensor]:
    found = _read(path / _MODEL, state[_MODEL])
    _check_like(path / _MODEL, found, {name: (list(x.shape), x.dtype) for name, x in model.state_dict().items()})
    return found


def _moments(
    path: Path, model: nn.Module, optimizer: Optimizer, state: Mapping[str, Any]
) -> dict[nn.Parameter, dict[str, Tensor]]:
    """What AdamW keeps, by parameter. A parameter that never had a gradient has nothing."""
    found = _read(path / _OPTIMIZER, state[_OPTIMIZER])
    updated = {name: p for name, p in model.named_parameters() if f"{name}/{_COUNT}" in found}
    wanted = {f"{name}/{key}": (list(p.shape), p.dtype) for name, p in updated.items() for key in _MOMENTS}
    _check_like(path / _OPTIMIZER, found, {**wanted, **{f"{name}/{_COUNT}": ([], torch.float32) for name in updated}})
    moments: dict[nn.Parameter, dict[str, Tensor]] = {}
    for name, parameter in updated.items():
        count = found[f"{name}/{_COUNT}"]
        if not 1 <= float(count) <= state["step"]:
            raise ValueError(f"{path / _OPTIMIZER} counts {float(count)} steps of {name}, {path.name} {state['step']}")
        on = parameter.device if optimizer.defaults.get("fused") else torch.device("cpu")
        moments[parameter] = {key: found[f"{name}/{key}"].to(parameter.device) for key in _MOMENTS}
        moments[parameter][_COUNT] = count.to(on)
    return moments


def _check_like(file: Path, found: Mapping[str, Tensor], wanted: Mapping[str, tuple[list[int], torch.dtype]]) -> None:
    there = {name: (list(x.shape), x.dtype) for name, x in found.items()}
    if there != wanted:
        different = sorted(name for name in there.keys() | wanted.keys() if there.get(name) != wanted.get(name))
        raise ValueError(f"{file} is of another model: {', '.join(different[:5])} differ in name, shape or type")


def _restore(generator: torch.Generator, file: Path, text: str) -> None:
    """Set the generator's state, from hexadecimal digits."""
    size = generator.get_state().shape[0]
    try:
        raw = bytearray.fromhex(text)
        if len(raw) != size:
            raise ValueError(f"{len(raw)} bytes instead of {size}")
        generator.set_state(torch.frombuffer(raw, dtype=torch.uint8))
    except (ValueError, RuntimeError) as error:
        raise ValueError(
            f"{file} is damaged: it holds no state of a {generator.device.type} generator: {error}"
        ) from error


def _optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{name}/{key}"] = value
    return tensors


def _read(path: Path, checksum: str) -> dict[str, Tensor]:
    try:
        # Copies: the file's memory map would follow whatever is written to the file later.
        found = {name: x.clone() for name, x in load_file(path).items()}
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if digest(found) != checksum:
        raise ValueError(f"{path} is damaged: its tensors are not those that were saved")
    return found
