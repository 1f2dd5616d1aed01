"""One run: a model, trained and scored.

It uses the lab's training step, not Hugging Face's Trainer: the text lies on the GPU and a step is one CUDA graph, so
that no mechanism waits for the host, however many kernels it launches.
"""

import gc
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.lm.contenders import EVERY, VOCABULARY, Scale
from benchmarks.lm.data import END, IGNORED, Texts, Validation
from varla.layers.gates import SoftplusGate, WriteStrength
from varla.lm.scoring import score
from varla.models import VarlaForCausalLM, preset
from varla.runs.outcomes import DIVERGED, FINISHED
from varla.training.graph import WARM
from varla.training.optimizer import Schedule, adamw, cosine
from varla.training.update import AsyncUpdate

CLIP, DECAY, BETAS = 1.0, 0.1, (0.9, 0.95)
WARM_UP, LAST = 0.1, 0.1  # share of the steps; share of the peak rate that the cosine ends at
POINTS = 50  # of the recorded loss curve


@dataclass(frozen=True)
class Job:
    """What defines a run: equal jobs give equal results. `purpose`: "choice" (of a learning rate) or "report"."""

    contender: str
    purpose: str
    rate: float
    seed: int
    tokens: int

    def key(self, scale: Scale, corpus: str) -> dict[str, Any]:
        """Everything that the result depends on, except the code and the machine."""
        shared = {"preset": scale.preset, "changes": dict(scale.changes), "rows": scale.rows, "context": scale.context}
        own = {"contender": self.contender, "purpose": self.purpose, "rate": self.rate, "seed": self.seed}
        contexts = list(scale.contexts) if self.purpose == "report" else [scale.context]
        return {**own, "tokens": self.tokens, **shared, "contexts": contexts, "corpus": corpus}


def schedule(rate: float, steps: int) -> Schedule:
    return cosine(rate, steps, warmup=max(1, round(WARM_UP * steps)), floor=LAST)


def build(name: str, scale: Scale) -> VarlaForCausalLM:
    changes = {"vocab_size": VOCABULARY, **scale.changes, **EVERY[name].changes(scale.depth)}
    return VarlaForCausalLM(preset(scale.preset, **changes, eos_token_id=END, pad_token_id=END))


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


class Step:
    """A training step on rows of the text: AdamW, in which only matrices decay. `graph`: as a CUDA graph."""

    def __init__(self, model: VarlaForCausalLM, texts: Texts, rows: int, rate: Schedule, graph: bool):
        """Nothing runs yet."""
        device = texts.tokens.device
        self.model, self.texts = model, texts
        self.rows = torch.zeros(rows, dtype=torch.int64, device=device)  # a graph reads it at this address
        groups = [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        optimizer = adamw(groups, betas=BETAS, capture_on=device if device.type == "cuda" else None)
        generator = torch.Generator(device) if graph else None  # nothing is drawn from it
        self.update = AsyncUpdate(self.objective, model, optimizer, rate, CLIP, generator)

    def objective(self) -> tuple[Tensor]:
        inputs, labels = self.texts.batch(self.rows)
        with autocast(inputs.device):
            logits = self.model(inputs, use_cache=False).logits
        return (cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED),)

    def __call__(self, step: int, rows: Tensor) -> Tensor:
        """The loss on these rows [rows], a scalar on the device that the next call overwrites."""
        self.rows.copy_(rows)
        return self.update(step, look=False).loss


class Clock:
    """Measures every step without waiting for the device."""

    def __init__(self, device: torch.device):
        """Nothing is measured yet."""
        self.gpu = device.type == "cuda"
        self.marks: list[Any] = []

    def mark(self) -> None:
        if not self.gpu:
            self.marks.append(time.perf_counter())
            return
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self.marks.append(event)

    def seconds(self) -> list[float]:
        pairs = zip(self.marks[:-1], self.marks[1:], strict=True)
        if not self.gpu:
            return [after - before for before, after in pairs]
        torch.cuda.synchronize()
        return [before.elapsed_time(after) / 1000 for before, after in pairs]


def run(job: Job, scale: Scale, texts: Texts, validation: Validation, eager: bool = False) -> dict[str, Any]:
    """Train and score; returns the results for the record. `eager`: no CUDA graph."""
    begun, device = time.perf_counter(), texts.tokens.device
    graph = device.type == "cuda" and not eager
    torch.manual_seed(job.seed)
    model = build(job.contender, scale).to(device).train()
    steps = scale.steps(job.tokens)
    step, clock = Step(model, texts, scale.rows, schedule(job.rate, steps), graph), Clock(device)
    losses = torch.zeros(steps, device=device)
    order = texts.order(scale.rows, steps, job.seed)
    clock.mark()
    for i in range(steps):
        losses[i] = step(i, order[i])
        clock.mark()
    times, curve = clock.seconds(), losses.tolist()
    speed = scale.rows * scale.context / statistics.median(times[min(WARM + 1, steps - 1) :])
    trained = time.perf_counter() - begun
    found: dict[str, Any] = {
        "status": FINISHED if all(map(math.isfinite, curve)) else DIVERGED,
        "steps": steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "state bytes": {str(T): model.model.state_size(T) for T in scale.contexts},
        "tokens/s": speed,
        "graph": graph,
        "peak bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "loss": thin(curve),
        "bits per byte": {},
    }
    del step
    if found["status"] == FINISHED:
        is_choice = job.purpose == "choice"
        tokens, contexts = (validation.tried, [scale.context]) if is_choice else (validation.reported, scale.contexts)
        found["bits per byte"] = scored(model, tokens, contexts)
        if scale.whole and not is_choice:
            found["tried"] = scored(model, validation.tried, [scale.context])
        found["gates"] = gate_means(model, torch.tensor(tokens[: scale.context], device=device)[None])
    found["seconds"] = {"training": round(trained, 1), "all": round(time.perf_counter() - begun, 1)}
    del model
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return found


@torch.no_grad()
def gate_means(model: VarlaForCausalLM, tokens: Tensor) -> dict[str, list[float]]:
    """What the gates of every layer are on average over these tokens [1, T]: a number for each head."""
    found: dict[str, list[float]] = {}

    def note(name: str) -> Callable[[nn.Module, Any, Tensor], None]:
        def hook(module: nn.Module, given: Any, gate: Tensor) -> None:
            found[name] = [float(f"{mean:.4g}") for mean in gate.float().mean((0, 1)).tolist()]

        return hook

    gates = ((name, each) for name, each in model.named_modules() if isinstance(each, (SoftplusGate, WriteStrength)))
    hooks = [each.register_forward_hook(note(name)) for name, each in gates]
    with autocast(model.device):
        model(tokens.long(), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


def thin(curve: list[float]) -> list[list[float | None]]:
    """Up to about POINTS pairs [step, loss]; None for a loss that is not finite, which JSON cannot hold."""
    some = range(0, len(curve), max(1, len(curve) // POINTS))
    return [[i + 1, round(curve[i], 4) if math.isfinite(curve[i]) else None] for i in some]


def scored(model: VarlaForCausalLM, tokens: NDArray[Any], contexts: Sequence[int]) -> dict[str, float]:
    """Bits per byte for each context length. A token is a byte."""
    with autocast(model.device):
        return {str(context): score(model, tokens, context, 1.0).bits_per_byte for context in contexts}
