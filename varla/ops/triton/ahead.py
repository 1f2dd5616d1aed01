"""Compiling ahead: every kernel that a configuration can need, at its first call, in threads.

Compiled one by one, as calls come to them, the kernels of a training step take half a minute. What a call launches
depends on its lengths too: one span or many, few heads or many. All of it is compiled here, so that no later length or
batch compiles anything.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
import triton

from varla.ops.settings import VLASettings
from varla.ops.triton.configuration import Inputs, Kept, State
from varla.ops.triton.pipeline import Pipeline
from varla.ops.triton.plan import CHUNK, make_plan, parts

_done: set[tuple[object, ...]] = set()


def compile_ahead(pipeline: Pipeline, dtype: torch.dtype, device: torch.device, backward: bool) -> None:
    """Compile what calls like this one can launch, for inputs of the given type: once in a process."""
    s = pipeline.shape
    key = (s, pipeline.precision, _switches(pipeline.settings), dtype, device)
    if (*key, True) in _done or (*key, backward) in _done:
        return
    started: list[Any] = []
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        with triton.AsyncCompileMode(threads):
            rehearse_all(pipeline, dtype, device, backward, started)
        compiled = {id(kernel): kernel for kernel in (each.result() for each in started if hasattr(each, "result"))}
        for _ in threads.map(_build_launcher, _one_of_each(compiled.values())):
            pass
    with torch.cuda.device(device):
        for kernel in compiled.values():
            _ = kernel.run  # loads it
    _done.add((*key, backward))


def rehearse_all(
    pipeline: Pipeline, dtype: torch.dtype, device: torch.device, backward: bool, started: list[Any]
) -> None:
    """One span, many, and as many heads as fill a GPU: between them they launch whatever any call does."""
    for lengths in ((CHUNK,), (8 * CHUNK,), (CHUNK,) * parts(128, pipeline.shape.H)):
        plan = make_plan(lengths, CHUNK, device)
        _rehearse(replace(pipeline, plan=plan, dry=started), lengths, dtype, device, backward)


def _one_of_each(kernels: Iterable[Any]) -> list[Any]:
    """One kernel of each signature: launchers depend on nothing else."""
    return list({tuple(kernel.src.signature.values()): kernel for kernel in kernels}.values())


def _build_launcher(kernel: Any) -> None:
    """Have the C compiler build what launches the kernel, which takes it as long as some kernels take.

    Only its file is of use. All launchers are Python modules of one name, and loading one again puts its function into
    whichever was loaded last: in threads, a kernel could end up with another's.
    """
    triton.runtime.driver.active.launcher_cls(kernel.src, kernel.metadata)


def _switches(settings: VLASettings) -> tuple[object, ...]:
    """What the kernels are compiled for; the numbers are handed to them."""
    s = settings
    return s.feature_map, s.normalize_key, s.normalizer, s.gain, s.update_penalty, s.beat is None


def _rehearse(
    pipeline: Pipeline, lengths: tuple[int, ...], dtype: torch.dtype, device: torch.device, backward: bool
) -> None:
    """A call and its backward, but for the launches. Nothing it computes is used."""
    s, N, tokens = pipeline.shape, len(lengths), sum(lengths)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    x = Inputs(*(empty(tokens, s.H, size, dtype=dtype) for size in (s.D, s.D, s.DV, s.D)))
    state = State(empty(N, s.H, s.DV, s.D), empty(N, s.H, s.D, s.D), empty(N, s.H, s.D), empty(N, dtype=torch.int64))
    kept = Kept.empty(x.q, s.DV, len(pipeline.plan.chunks), len(pipeline.plan.spans), pipeline.precision.buffer)
    o, S, A, z = pipeline.forward(x, state, kept)
    if backward:
        pipeline.backward(x, state, kept, A, o, S, A, z)
