"""Compiles every kernel that a configuration can need, at its first call, in threads.

Compiled one by one, as calls come to them, the kernels of a training step take half a minute. What a call launches
depends on its lengths too: one span or many, few heads or many. All of it is compiled here, so that no later length or
batch compiles anything.
"""

import os
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton

from varla.ops.triton.plan import CHUNK, Plan, make_plan, parts

# Makes a call with this plan, compiling kernels into the list instead of running them: (tokens, plan, list).
Rehearsal = Callable[[int, Plan, list[Any]], None]

_done: set[Hashable] = set()


def precompile(key: Hashable, rehearse: Rehearsal, heads: int, device: torch.device, backward: bool) -> None:
    """Compile what calls with this key can launch, their `backward` included if it is: once in a process."""
    if (key, True) in _done or (key, backward) in _done:
        return
    started: list[Any] = []
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        with triton.AsyncCompileMode(threads):
            rehearse_all(rehearse, heads, device, started)
        compiled = {id(kernel): kernel for kernel in (each.result() for each in started if hasattr(each, "result"))}
        for _ in threads.map(_build_launcher, _one_of_each(compiled.values())):
            pass
    with torch.cuda.device(device):
        for kernel in compiled.values():
            _ = kernel.run  # loads it
    _done.add((key, backward))


def rehearse_all(rehearse: Rehearsal, heads: int, device: torch.device, started: list[Any]) -> None:
    """One span, many, and as many heads as fill a GPU: between them they launch whatever any call does."""
    for lengths in ((CHUNK,), (8 * CHUNK,), (CHUNK,) * parts(128, heads)):
        rehearse(sum(lengths), make_plan(lengths, CHUNK, device), started)


def _one_of_each(kernels: Iterable[Any]) -> list[Any]:
    """One kernel of each signature: launchers depend on nothing else."""
    return list({tuple(kernel.src.signature.values()): kernel for kernel in kernels}.values())


def _build_launcher(kernel: Any) -> None:
    """Have the C compiler build what launches the kernel, which takes it as long as some kernels take.

    Only its file is of use. All launchers are Python modules of one name, and loading one again puts its function into
    whichever was loaded last: in threads, a kernel could end up with another's.
    """
    triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)
