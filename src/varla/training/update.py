"""One update of the weights: as it is written, or as a CUDA graph."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from varla.tasks import IGNORE
from varla.training.config import TrainConfig
from varla.training.graph import Graphed
from varla.training.schedule import learning_rate


class Diverged(RuntimeError):
    """A loss or a gradient was not finite; the message says at which step and where."""


class Update(NamedTuple):
    """What an update showed, as scalars on the device: of this process's share of the batch."""

    loss: Tensor
    norm: Tensor  # of the gradients, before clipping
    hits: Tensor  # right answers
    scored: Tensor


def score(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(right answers, scored positions) of logits [B, T, V] against labels [B, T], -100 where nothing is scored."""
    scored = labels != IGNORE
    return ((logits.argmax(-1) == labels) & scored).sum(), scored.sum()


def adamw(model: nn.Module, t: TrainConfig, device: torch.device, graph: bool) -> torch.optim.AdamW:
    """The optimiser. A graph holds addresses: there, the learning rate and the count of steps are on the device."""
    rate = torch.tensor(t.lr, device=device) if graph else t.lr
    return torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(t.beta1, t.beta2), eps=t.adam_eps, weight_decay=t.weight_decay,
        fused=True if graph else None, capturable=graph,
    )  # fmt: skip


@dataclass
class Eager:
    """An update, operator by operator, in any number of processes. `model` and `optimizer` are the accelerator's."""

    train: TrainConfig
    task: Any
    model: nn.Module
    optimizer: Any
    generator: torch.Generator
    accelerator: Any

    def __call__(self, step: int, look: bool) -> Update:
        """Make it. Raises Diverged at the first number that is not finite, whether or not anyone looks."""
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate(step, self.train)
        inputs, labels = self.task.batch(self.train.batch_size, generator=self.generator)
        share = slice(self.accelerator.process_index, None, self.accelerator.num_processes)
        inputs, labels = inputs[share], labels[share]
        try:
            with self.accelerator.autocast():
                logits, _ = self.model(inputs)
            loss = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
            self.accelerator.backward(loss)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise Diverged(f"diverged at step {step + 1}: {error}") from error
        norm = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        if not torch.isfinite(loss + norm):  # before clipping, which would spread it to all gradients
            raise Diverged(self._blame(loss, step))
        clip_grads_with_norm_(self.model.parameters(), self.train.clip, norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Update(loss.detach(), norm, *score(logits, labels))

    def check(self) -> None:
        """Every step has looked for itself."""

    def _blame(self, loss: Tensor, step: int) -> str:
        """What is not finite: the loss, and the gradients of which parameters."""
        model = self.accelerator.unwrap_model(self.model)
        bad = [name for name, p in model.named_parameters() if p.grad is not None and not p.grad.isfinite().all()]
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        wrong = f"the gradient of {', '.join(bad[:3])}{more} is not finite" if bad else "all gradients are finite"
        return f"diverged at step {step + 1}: {wrong} (loss {loss.item():.4g})"


class InGraph:
    """The same on one GPU, as a CUDA graph: one launch instead of hundreds. `optimizer` is of `adamw(graph=True)`."""

    def __init__(
        self,
        train: TrainConfig,
        task: Any,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        generator: torch.Generator,
        accelerator: Any,
    ):
        """Nothing is captured yet."""
        self.train, self.task, self.model, self.optimizer = train, task, model, optimizer
        self.generator, self.accelerator = generator, accelerator
        self.step = torch.zeros((), dtype=torch.int64, device=generator.device)
        self.bad = torch.zeros((), dtype=torch.int64, device=generator.device)  # the first step that was not finite
        self.graphed = Graphed(self._body, generator)

    def __call__(self, step: int, look: bool) -> Update:
        """Make it. Raises Diverged where someone looks: to know at every step, the host would have to wait for it."""
        for group in self.optimizer.param_groups:
            group["lr"].fill_(learning_rate(step, self.train))
        self.step.fill_(step + 1)
        try:
            update = Update(*self.graphed())
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]
            raise Diverged(f"diverged at step {step + 1}: {error}") from error
        if look:
            self.check()
        return update

    def check(self) -> None:
        """Raise Diverged if any step so far was not finite."""
        if bad := int(self.bad):
            raise Diverged(f"diverged at step {bad}: the loss or a gradient is not finite")

    def _body(self) -> tuple[Tensor, ...]:
        self.optimizer.zero_grad(set_to_none=True)
        inputs, labels = self.task.batch(self.train.batch_size, generator=self.generator)
        with self.accelerator.autocast():
            logits, _ = self.model(inputs)
        loss = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        first = ~torch.isfinite(loss + norm) & (self.bad == 0)
        self.bad.copy_(torch.where(first, self.step, self.bad))
        clip_grads_with_norm_(self.model.parameters(), self.train.clip, norm)
        self.optimizer.step()
        return Update(loss.detach(), norm, *score(logits, labels))
