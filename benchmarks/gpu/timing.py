"""Time and memory of a call on the GPU, and the bandwidth of a copy to compare with."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

MB = 2**20


class Timing(NamedTuple):
    ms: float
    spread: float  # from the 10th to the 90th percentile, divided by the median
    host: float  # ms until the call returns, from an idle GPU. If it is close to `ms`, the host is the limit


def timed(call: Callable[[], object], repeats: int = 20) -> Timing:
    for _ in range(3):
        call()
    host = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        host.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    whole = time.perf_counter() - start
    repeats = max(3, min(repeats, int(2 / whole)))  # at most about two seconds
    marks = [(event(), event()) for _ in range(repeats)]
    for begin, end in marks:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) for begin, end in marks)
    median = statistics.median(times)
    spread = times[-1 - repeats // 10] - times[repeats // 10]
    return Timing(median, spread / median, 1e3 * statistics.median(host))


def event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def copy_rate(repeats: int) -> float:
    """GB/s that a copy on the GPU reads and writes: the limit of memory-bound work."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source), repeats).ms / 1e6


def peak_mb(call: Callable[[], object]) -> tuple[float, float]:
    """Peak GPU memory during a call in MB: (in total, beyond what was allocated before)."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    peak = torch.cuda.max_memory_allocated()
    del kept
    return peak / MB, (peak - before) / MB


def once(call: Callable[[], object]) -> float:
    """Milliseconds of a single call, for calls too slow to repeat."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)
