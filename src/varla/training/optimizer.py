"""AdamW and its learning rate."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from varla.layers.gates import undecayed

Schedule = Callable[[int], float]
"""The learning rate of a step, counted from 0. It depends on the step alone, so a checkpoint need not keep it."""


def parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """All parameters, for `adamw`. If the model has gates, their biases and rates are a second group without decay."""
    kept = undecayed(model)
    groups: list[dict[str, Any]] = [{"params": [p for name, p in model.named_parameters() if name not in kept]}]
    if kept:
        rest = [p for name, p in model.named_parameters() if name in kept]
        groups.append({"params": rest, "weight_decay": 0.0})
    return groups


def adamw(
    parameters: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    capture_on: torch.device | None = None,
) -> torch.optim.AdamW:
    """AdamW on parameters or groups of them. An update sets its learning rate.

    `capture_on`: the device of a CUDA graph that the step may become part of. A graph keeps addresses, so learning
    rate and step count then live in tensors on that device.
    """
    capture = capture_on is not None
    return torch.optim.AdamW(
        parameters, lr=torch.zeros((), device=capture_on) if capture else 0.0, betas=betas, eps=eps,
        weight_decay=weight_decay, fused=True if capture else None, capturable=capture,
    )  # fmt: skip


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of all groups; a tensor is filled, so that a CUDA graph reads the new value."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def cosine(peak: float, steps: int, warmup: int, floor: float = 0.0) -> Schedule:
    """A linear rise to `peak` over `warmup` steps, then a cosine down to the share `floor` of it."""

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        done = (step - warmup) / max(1, steps - warmup)
        return peak * (floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2)

    return rate
