"""One update of the weights: checked at once, or without waiting for the device, as a CUDA graph needs it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from varla.runs.outcomes import Diverged
from varla.training.graph import Graphed
from varla.training.optimizer import Schedule, set_rate

Objective = Callable[[], tuple[Tensor, ...]]
"""Takes the next batch through the model; returns the loss and any other scalars to report."""


class Update(NamedTuple):
    """What an update showed, as scalars on the device. A captured update overwrites them at the next call."""

    loss: Tensor
    norm: Tensor  # of the gradients, before clipping
    others: tuple[Tensor, ...]  # what the objective returned beside the loss


@dataclass
class CheckedUpdate:
    """Waits for every step and raises Diverged at the first number that is not finite. For any number of processes.

    `model` and `optimizer` may be wrapped by Accelerate; `backward` is then the accelerator's.
    """

    objective: Objective
    model: nn.Module
    optimizer: Any
    rate: Schedule
    clip: float
    backward: Callable[[Tensor], object] = Tensor.backward

    def __call__(self, step: int, look: bool = True) -> Update:
        """Step number `step`, counted from 0. `look` changes nothing: every step is checked."""
        set_rate(self.optimizer, self.rate(step))
        try:
            loss, *others = self.objective()
            self.backward(loss)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise Diverged(f"diverged at step {step + 1}: {error}") from error
        norm = _gradient_norm(self.model)
        if not torch.isfinite(loss + norm):  # before clipping, which would spread it to all gradients
            raise Diverged(self._blame(loss, step))
        clip_grads_with_norm_(self.model.parameters(), self.clip, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Update(loss.detach(), norm, tuple(others))

    def check(self) -> None:
        """Nothing to do: every step was checked."""

    def _blame(self, loss: Tensor, step: int) -> str:
        """Name the parameters whose gradients are not finite."""
        bad = [
            name.removeprefix("module.")  # which DistributedDataParallel puts before every name
            for name, p in self.model.named_parameters()
            if p.grad is not None and not p.grad.isfinite().all()
        ]
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        wrong = f"the gradient of {', '.join(bad[:3])}{more} is not finite" if bad else "all gradients are finite"
        return f"diverged at step {step + 1}: {wrong} (loss {loss.item():.4g})"


@dataclass
class AsyncUpdate:
    """Never waits for the device: numbers that are not finite are found when the caller looks. For one process.

    `generator`: run as a CUDA graph from the fourth step on, one launch instead of hundreds. It is the generator that
    the objective may draw from, and `optimizer` is of `adamw(capture_on=...)`. None: operator by operator.
    """

    objective: Objective
    model: nn.Module
    optimizer: torch.optim.Optimizer
    rate: Schedule
    clip: float
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        device = next(self.model.parameters()).device
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.first_bad = torch.zeros_like(self.step)  # the first step that was not finite, counted from 1; 0: none
        self.run = self._body if self.generator is None else Graphed(self._body, self.generator)

    def __call__(self, step: int, look: bool = True) -> Update:
        """Step number `step`, counted from 0. `look` waits for it and raises Diverged if any step so far did."""
        set_rate(self.optimizer, self.rate(step))
        self.step.fill_(step + 1)
        try:
            loss, norm, *others = self.run()
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise Diverged(f"diverged at step {step + 1}: {error}") from error
        if look:
            self.check()
        return Update(loss, norm, tuple(others))

    def check(self) -> None:
        """Raise Diverged if the loss or a gradient of any step so far was not finite."""
        if bad := int(self.first_bad):
            raise Diverged(f"diverged at step {bad}: the loss or a gradient is not finite")

    def _body(self) -> tuple[Tensor, ...]:
        self.optimizer.zero_grad(set_to_none=True)
        loss, *others = self.objective()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = _gradient_norm(self.model)
        first = ~torch.isfinite(loss + norm) & (self.first_bad == 0)
        self.first_bad.copy_(torch.where(first, self.step, self.first_bad))
        clip_grads_with_norm_(self.model.parameters(), self.clip, norm)
        self.optimizer.step()
        return loss.detach(), norm, *others


def _gradient_norm(model: nn.Module) -> Tensor:
    return get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
