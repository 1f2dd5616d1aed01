"""Time and memory of a call on the device, and the rate of a copy to hold them against."""

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

MB = 2**20


class Timing(NamedTuple):
    ms: float
    spread: float  # from the 10th to the 90th percentile, over the median
    host: float  # ms until the call returns, the device being idle: near `ms`, it is the host that is slow


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
    repeats = max(3, min(repeats, int(2 / whole)))  # about two seconds at the most
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
    """GB/s that a copy on the device reads and writes: what memory-bound work is held against."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / timed(lambda: target.copy_(source), repeats).ms / 1e6


def peak_mb(call: Callable[[], object]) -> tuple[float, float]:
    """The most device memory allocated during a call: all of it, and beyond what was there before."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    peak = torch.cuda.max_memory_allocated()
    del kept
    return peak / MB, (peak - before) / MB


def once(call: Callable[[], object]) -> float:
    """Milliseconds of a single call, for what is too slow to be called again."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)
