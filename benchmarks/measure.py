"""How benchmarks measure time (interleaved medians) and memory (allocator events), and how they record a run."""

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

    Calls are interleaved, so that changes in the machine's speed affect all functions alike. On a shared machine, only
    ratios within one call of `medians` are meaningful.
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
    """Peak CPU tensor memory of a call, beyond what was allocated before it.

    It is summed from the allocator's events, so it repeats to the byte, unlike the resident size of the process.
    """
    function()  # fills caches, which are not to be counted
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
    """Peak resident memory of this process, in bytes. Linux only.

    We do not use `resource.getrusage`: its value begins with the peak of the parent process.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def write(name: str, results: Mapping[str, Any]) -> Path:
    """Write results, and a description of the machine, to benchmarks/results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": environment.describe(), **results}, indent=2) + "\n")
    return path


def table(header: list[str], rows: list[list[str]]) -> str:
    """A table as text: the first column is aligned left, the others right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, ["-" * width for width in widths], *rows]:
        first, *rest = zip(row, widths, strict=True)
        lines.append("  ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]))
    return "\n".join(lines)


def drawn(page: str, source: str, table: str) -> str:
    """The page with the table between its markers, of which the first names the source."""
    begin, end = f"<!-- {source} -->", "<!-- end -->"
    before, _, rest = page.partition(begin)
    _, mark, after = rest.partition(end)
    if not mark:
        raise ValueError(f"the page has no place for the table: it must hold {begin!r} and {end!r}")
    return f"{before}{begin}\n{table}\n{end}{after}"
