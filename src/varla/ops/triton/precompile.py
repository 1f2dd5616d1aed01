"""Compiles every kernel that a configuration can need, in threads, at the first call.

One after the other, the kernels of a training step take half a minute to compile. Which kernels a call launches also
depends on its lengths: one span or many, few heads or many. All of them are compiled here, so that no later length or
batch size compiles anything.
"""

import os
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton

from varla.ops.triton.plan import CHUNK, Plan, make_plan, parts

# Runs a call of `tokens` tokens with this plan, but compiles its kernels into the list instead of launching them.
Rehearsal = Callable[[int, Plan, list[Any]], None]

_done: set[Hashable] = set()


def precompile(key: Hashable, rehearse: Rehearsal, heads: int, device: torch.device, backward: bool) -> None:
    """Compile all kernels that calls with this key can launch, with those of the `backward` if True; once a process."""
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
            _ = kernel.run  # loads the kernel onto the device
    _done.add((key, backward))


def rehearse_all(rehearse: Rehearsal, heads: int, device: torch.device, started: list[Any]) -> None:
    """Rehearse one span, many spans, and enough heads to fill a GPU. Together they launch every kernel of any call."""
    for lengths in ((CHUNK,), (8 * CHUNK,), (CHUNK,) * parts(128, heads)):
        rehearse(sum(lengths), make_plan(lengths, CHUNK, device), started)


def _one_of_each(kernels: Iterable[Any]) -> list[Any]:
    """One kernel of each signature; a launcher depends only on the signature."""
    return list({tuple(kernel.src.signature.values()): kernel for kernel in kernels}.values())


def _build_launcher(kernel: Any) -> None:
    """Build the kernel's launcher with the C compiler, which takes as long as compiling some kernels.

    We only want the file in Triton's cache, and drop the launcher itself. All launchers are Python modules of one name,
    and loading one again puts its function into the module loaded last. In threads, a kernel could get another's.
    """
    triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)
