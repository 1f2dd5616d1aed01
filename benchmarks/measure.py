"""How benchmarks measure: interleaved medians for time, allocator events for memory, and the record of a run."""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from varla.runs import environment

RESULTS = Path(__file__).parent / "results"


def medians(functions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each function, called in turn `rounds` times after one warm-up.

    Calls are interleaved, so that a machine that speeds up or slows down does so for all of them alike: only ratios
    within one call of this function mean anything on a shared machine.
    """
    for function in functions.values():
        function()
    times: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def peak_bytes(function: Callable[[], object]) -> int:
    """The most CPU tensor memory alive at any moment of a call beyond what was alive before it.

    Summed from the allocator's own events, so it repeats to the byte, unlike the process's resident size.
    """
    function()  # not the first call's caches
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        kept = function()
    kineto = profiler.profiler.kineto_results if profiler.profiler else None
    if kineto is None:
        raise RuntimeError("the profiler recorded nothing")
    events = [event for event in kineto.events() if event.name() == "[memory]"]
    alive = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        peak = max(peak, alive)
    del kept
    return peak


def peak_resident() -> int:
    """The most memory, in bytes, that this process ever had resident. Linux only.

    Not `resource.getrusage`: a process begins there with the peak of the one that started it.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def write(name: str, results: Mapping[str, Any]) -> Path:
    """Write results with the machine they were measured on to benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": environment.describe(), **results}, indent=2) + "\n")
    return path


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns padded to their widest cell; the first to the left, the others to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        first, *rest = zip(row, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]))
    return "\n".join(lines)
