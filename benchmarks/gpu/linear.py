"""Section `linear`: time per token for growing sequences, and time of a training step compared with DeltaNet's."""

import torch

from benchmarks import train_step
from benchmarks.gpu import forms, timing
from benchmarks.gpu.record import Findings, Options, Row

FULL, ONE = (4, 16, 64), (1, 4, 64)  # B, heads, D: a batch that fills the GPU at any length; one small sequence


def run(found: Findings, options: Options) -> None:
    for B, heads, D in (FULL, ONE):
        grow(found, options, B, heads, D)
    train(found, options)


def grow(found: Findings, options: Options, B: int, heads: int, D: int) -> None:
    """Only FULL has a goal. A longer ONE fills more of the GPU, so its time per token falls."""
    lengths = [8192 << i for i in range(2 if options.quick else 6)]
    title = f"nanoseconds a token, bf16, B={B} H={heads} D={D}"
    for T in lengths:
        row: Row = {"T": T}
        for form in forms.VARLA:
            torch.cuda.empty_cache()
            x = forms.work(form, B, T, heads, D)
            row[f"{form}, forward"] = 1e6 * timing.timed(x.forward, options.repeats).ms / (B * T)
            row[f"{form}, both"] = 1e6 * timing.timed(x.both, options.repeats).ms / (B * T)
            del x
        found.add(title, **row)
        found.keep()
    rows = found.tables[title]
    for key in list(rows[0])[1:]:
        values = [row[key] for row in rows]
        if (B, heads, D) == FULL:
            found.goal(f"largest over smallest, {key}", max(values) / min(values), most=1.1)
        found.notes.append(f"B={B} H={heads}, {key}: T={lengths[-1]} over T={lengths[0]}: {values[-1] / values[0]:.2f}")


def train(found: Findings, options: Options) -> None:
    """Time a training step of the paper's model. At this length `deltanet` also runs in chunks."""
    task = {"name": "mqar", "n": 24}
    times = {}
    for name in ("deltanet", "vla"):
        step = train_step.step({"mechanism": name, "task": task}, device=forms.DEVICE)
        times[name] = timing.timed(step, options.repeats).ms
        found.add("training step, preset paper, mqar n=24, batch 64", mechanism=name, ms=times[name])
    found.goal("training step, vla / deltanet", times["vla"] / times["deltanet"], most=1.5)
