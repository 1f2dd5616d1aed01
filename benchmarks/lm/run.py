"""One run: a model, trained and scored.

By a loop of its own, not Hugging Face's Trainer: the text lies on the GPU and a step is one CUDA graph, so that no
mechanism waits for the host, whatever number of kernels it launches.
"""

import gc
import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from benchmarks.lm.contenders import CONTENDERS, VOCABULARY, Scale
from benchmarks.lm.data import END, IGNORED, Texts, Validation
from varla.lm.scoring import score
from varla.models import VarlaForCausalLM, preset
from varla.training.graph import WARM, Graphed

CLIP, DECAY, BETAS = 1.0, 0.1, (0.9, 0.95)
WARM_UP, LAST = 0.1, 0.1  # share of the steps; share of the rate that the cosine ends at
POINTS = 50  # of the loss's curve


@dataclass(frozen=True)
class Job:
    """What makes a run: equal ones give equal results. `purpose`: "choice" or "report"."""

    contender: str
    purpose: str
    rate: float
    seed: int
    tokens: int

    def key(self, scale: Scale, corpus: str) -> dict[str, Any]:
        """Everything that its result depends on but for the code and the machine."""
        shared = {"preset": scale.preset, "changes": dict(scale.changes), "rows": scale.rows, "context": scale.context}
        own = {"contender": self.contender, "purpose": self.purpose, "rate": self.rate, "seed": self.seed}
        contexts = list(scale.contexts) if self.purpose == "report" else [scale.context]
        return {**own, "tokens": self.tokens, **shared, "contexts": contexts, "corpus": corpus}


def rate_at(step: int, steps: int, rate: float) -> float:
    """Linear warm-up, then a cosine."""
    warm = max(1, round(WARM_UP * steps))
    if step < warm:
        return rate * (step + 1) / warm
    done = (step - warm) / max(1, steps - warm)
    return rate * (LAST + (1 - LAST) * (1 + math.cos(math.pi * done)) / 2)


def build(name: str, scale: Scale) -> VarlaForCausalLM:
    changes = {"vocab_size": VOCABULARY, **scale.changes, **CONTENDERS[name].changes(scale.depth)}
    return VarlaForCausalLM(preset(scale.preset, **changes, eos_token_id=END, pad_token_id=END))


def optimizer_of(model: VarlaForCausalLM, device: torch.device) -> torch.optim.AdamW:
    """AdamW; matrices decay. A graph holds addresses: on a GPU, the rate and the count of steps lie there."""
    gpu = device.type == "cuda"
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    rate = torch.zeros((), device=device) if gpu else 0.0
    return torch.optim.AdamW(groups, lr=rate, betas=BETAS, fused=gpu or None, capturable=gpu)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def autocast(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")


class Step:
    """An update of the weights: with `graph` as a CUDA graph, from the fourth on."""

    def __init__(self, model: VarlaForCausalLM, optimizer: torch.optim.Optimizer, texts: Texts, rows: int, graph: bool):
        """A step reads `rows` rows. Nothing runs yet."""
        self.model, self.optimizer, self.texts = model, optimizer, texts
        device = texts.tokens.device
        self.rows = torch.zeros(rows, dtype=torch.int64, device=device)
        self.call = Graphed(self._body, torch.Generator(device)) if graph else self._body

    def __call__(self, rows: Tensor) -> Tensor:
        """The loss on these rows [rows], a scalar on the device that the next call overwrites."""
        self.rows.copy_(rows)
        return self.call()[0]

    def _body(self) -> tuple[Tensor, ...]:
        self.optimizer.zero_grad(set_to_none=True)
        inputs, labels = self.texts.batch(self.rows)
        with autocast(inputs.device):
            logits = self.model(inputs, use_cache=False).logits
        loss = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORED)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])
        clip_grads_with_norm_(self.model.parameters(), CLIP, norm)
        self.optimizer.step()
        return (loss.detach(),)


class Clock:
    """The time of every step, without waiting for any."""

    def __init__(self, device: torch.device):
        """Of what runs there."""
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
    """Train and score; what came out, for the record. `eager`: no CUDA graph."""
    begun, device = time.perf_counter(), texts.tokens.device
    graph = device.type == "cuda" and not eager
    torch.manual_seed(job.seed)
    model = build(job.contender, scale).to(device).train()
    steps = scale.steps(job.tokens)
    optimizer = optimizer_of(model, device)
    step, clock = Step(model, optimizer, texts, scale.rows, graph), Clock(device)
    losses = torch.zeros(steps, device=device)
    order = texts.order(scale.rows, steps, job.seed)
    clock.mark()
    for i in range(steps):
        set_rate(optimizer, rate_at(i, steps, job.rate))
        losses[i] = step(order[i])
        clock.mark()
    times, curve = clock.seconds(), losses.tolist()
    speed = scale.rows * scale.context / statistics.median(times[min(WARM + 1, steps - 1) :])
    trained = time.perf_counter() - begun
    found: dict[str, Any] = {
        "status": "finished" if all(map(math.isfinite, curve)) else "diverged",
        "steps": steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "state bytes": {str(T): model.model.state_size(T) for T in scale.contexts},
        "tokens/s": speed,
        "graph": graph,
        "peak bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else None,
        "loss": thin(curve),
        "bits per byte": {},
    }
    del step, optimizer
    if found["status"] == "finished":
        found["bits per byte"] = scored(model, job, scale, validation)
    found["seconds"] = {"training": round(trained, 1), "all": round(time.perf_counter() - begun, 1)}
    del model
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    return found


def thin(curve: list[float]) -> list[list[float | None]]:
    """Some [step, loss]; None where it is no number, which JSON cannot say."""
    some = range(0, len(curve), max(1, len(curve) // POINTS))
    return [[i + 1, round(curve[i], 4) if math.isfinite(curve[i]) else None] for i in some]


def scored(model: VarlaForCausalLM, job: Job, scale: Scale, validation: Validation) -> dict[str, float]:
    """Bits per byte by context: a token is a byte."""
    is_choice = job.purpose == "choice"
    tokens = validation.tried if is_choice else validation.reported
    contexts = (scale.context,) if is_choice else scale.contexts
    with autocast(model.device):
        return {str(context): score(model, tokens, context, 1.0).bits_per_byte for context in contexts}
