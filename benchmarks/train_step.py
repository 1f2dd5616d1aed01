"""Time of a training step of the paper's model with each mechanism: `python -m benchmarks.train_step`.

The task is MQAR with n = 24 (T = 73), batch 64, preset `paper`. Times are given relative to linear attention within one
run, and written to benchmarks/results/train_step.json. The step is forward, backward and AdamW. The lab's clipping and
checks are left out: they take the same time for every mechanism and would hide the differences.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from benchmarks.measure import medians, table, write
from varla.layers import MECHANISMS
from varla.training import build_model, build_task, from_dict


def step(settings: dict[str, Any], device: str = "cpu") -> Callable[[], None]:
    config = from_dict(settings)
    model = build_model(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator(device).manual_seed(0)
    inputs, labels = build_task(config).batch(config.train.batch_size, generator=generator)

    def call() -> None:
        logits, _ = model(inputs)
        torch.autograd.backward(cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args()
    task = {"name": "mqar", "n": arguments.n}
    steps = {name: step({"mechanism": name, "task": task}) for name in MECHANISMS}
    steps["vla, A fixed"] = step({"mechanism": "vla", "task": task, "layer": {"update_penalty": False}})
    seconds = medians(steps, arguments.rounds)
    ratios = {name: seconds[name] / seconds["linear"] for name in seconds}
    rows = [[name, f"{1e3 * seconds[name]:.1f}", f"{ratios[name]:.2f}"] for name in seconds]
    print(table(["mechanism", "ms per step", "times linear"], rows))
    print("goal: vla at most 4 times linear")
    write("train_step", {"n": arguments.n, "milliseconds": {k: 1e3 * v for k, v in seconds.items()}, "ratios": ratios})


if __name__ == "__main__":
    main()
