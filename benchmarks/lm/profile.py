"""Where the time of a training step goes: `python -m benchmarks.lm.profile [CONTENDER ...]`, on a GPU.

Runs the step of benchmarks.lm, as one CUDA graph, on random bytes. Lists kernels by their total time.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import measure
from benchmarks.lm.contenders import CONTENDERS, EVERY, FULL, QUICK, VOCABULARY, Scale
from benchmarks.lm.data import Texts
from benchmarks.lm.run import Clock, Step, build
from varla.training.graph import WARM

STEPS, PROFILED = 12, 2


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.lm.profile", description=__doc__)
    listed = f"of: {', '.join(EVERY)} (default: the first {len(CONTENDERS)})"
    parser.add_argument("contenders", nargs="*", metavar="CONTENDER", help=listed)
    parser.add_argument("--kernels", type=int, default=16, help="how many to show")
    parser.add_argument("--quick", action="store_true", help="tiny models, on the CPU")
    given = parser.parse_args(arguments)
    for name in given.contenders:
        if name not in EVERY:
            parser.error(f"there is no contender {name!r}; there are: {', '.join(EVERY)}")
    if given.kernels < 1:
        parser.error(f"--kernels must be at least 1, got {given.kernels}")
    if not given.quick and not torch.cuda.is_available():
        parser.error("this measures time on a CUDA GPU, and there is none here; --quick runs a tiny model on the CPU")
    scale, device = (QUICK, torch.device("cpu")) if given.quick else (FULL, torch.device("cuda"))
    for name in given.contenders or CONTENDERS:
        milliseconds, kernels = taken(name, scale, device)
        tokens = scale.rows * scale.context
        print(f"\n{name}: {milliseconds:.1f} ms a step, {tokens / milliseconds / 1e3:.3g} M tokens/s")
        rows = [[f"{ms:.3f}", str(count), kernel[:90]] for ms, count, kernel in kernels[: given.kernels]]
        print(measure.table(["ms", "calls", "kernel" if device.type == "cuda" else "operator"], rows), flush=True)
    return 0


def taken(name: str, scale: Scale, device: torch.device) -> tuple[float, list[tuple[float, int, str]]]:
    """Milliseconds of a step, and its kernels as (total milliseconds, calls, name), the longest first."""
    torch.manual_seed(0)
    documents = [bytes(row) for row in torch.randint(VOCABULARY - 1, (scale.rows, scale.context)).tolist()]
    texts = Texts.of(documents, scale.context, device)
    model = build(name, scale).to(device).train()
    gpu = device.type == "cuda"
    step, clock = Step(model, texts, scale.rows, lambda _: 1e-4, gpu), Clock(device)
    rows = torch.arange(scale.rows, device=device)
    for i in range(WARM + 2):
        step(i, rows)
    clock.mark()
    for i in range(STEPS if gpu else 1):
        step(i, rows)
        clock.mark()
    milliseconds = 1e3 * statistics.median(clock.seconds())
    with profile(activities=[ProfilerActivity.CUDA if gpu else ProfilerActivity.CPU]) as watched:
        for i in range(PROFILED):
            step(i, rows)
        if gpu:
            torch.cuda.synchronize()
    found = [
        ((each.self_device_time_total if gpu else each.self_cpu_time_total) / 1e3 / PROFILED, each.count, each.key)
        for each in watched.key_averages()
    ]
    kernels = [(ms, max(1, count // PROFILED), key) for ms, count, key in found if ms > 0]
    return milliseconds, sorted(kernels, reverse=True)


if __name__ == "__main__":
    sys.exit(main())
