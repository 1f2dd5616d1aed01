"""Section `linear`: the time of a token as sequences grow, and of a training step beside DeltaNet's."""

from benchmarks import train_step
from benchmarks.gpu import forms, timing
from benchmarks.gpu.record import Found, Options, Row


def run(found: Found, options: Options) -> None:
    B, heads, D = 1, 4, 64
    lengths = [8192 << i for i in range(2 if options.quick else 6)]
    title = f"nanoseconds a token, bf16, B={B} H={heads} D={D}"
    for T in lengths:
        row: Row = {"T": T}
        for form in forms.VARLA:
            x = forms.work(form, B, T, heads, D)
            row[f"{form}, forward"] = 1e6 * timing.timed(x.forward, options.repeats).ms / T
            row[f"{form}, both"] = 1e6 * timing.timed(x.both, options.repeats).ms / T
        found.add(title, **row)
        found.keep()
    rows = found.tables[title]
    for key in list(rows[0])[1:]:
        values = [row[key] for row in rows]
        found.goal(f"largest over smallest, {key}", max(values) / min(values), most=1.1)
        found.notes.append(f"{key}: T={lengths[-1]} over T={lengths[0]}: {values[-1] / values[0]:.2f}")
    train(found, options)


def train(found: Found, options: Options) -> None:
    """A training step of the paper's model; `deltanet` is the chunk form in PyTorch, which has no kernels here."""
    task = {"name": "mqar", "n": 24}
    times = {}
    for name in ("deltanet", "vla"):
        step = train_step.step({"mechanism": name, "task": task}, device=forms.DEVICE)
        times[name] = timing.timed(step, options.repeats).ms
        found.add("training step, preset paper, mqar n=24, batch 64", mechanism=name, ms=times[name])
    found.goal("training step, vla / deltanet", times["vla"] / times["deltanet"], most=1.5)
