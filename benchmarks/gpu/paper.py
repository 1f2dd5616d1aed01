"""Section `paper`: the paper's claims: a speed-up over the loop, and the length from which softmax is slower."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module

import torch
from torch import Tensor

import varla
from benchmarks.gpu import forms, timing
from benchmarks.gpu.record import Findings, Options, Row, cell, text_of


def run(found: Findings, options: Options) -> None:
    loop(found, options)
    found.keep()
    crossings(found, options)


def loop(found: Findings, options: Options) -> None:
    B, T, heads, D = 1, 64 if options.quick else 4096, 4, 32
    title = f"float32, B={B} T={T} H={heads} D={D}: the kernels against the reference loop, which runs once"
    sequential = sequential_kernel(found)
    for form, period in forms.VARLA.items():
        x = forms.work(form, B, T, heads, D, torch.float32)
        slow = forms.Work(partial(varla.vla, refresh_every=period, backend="reference"), x.tensors, x.grad)
        few = [y[:, :40].detach().requires_grad_() for y in x.tensors]
        forms.Work(slow.call, few, x.grad[:, :40]).both()  # warm-up
        for name, ours, theirs in (("forward", x.forward, slow.forward), ("forward+backward", x.both, slow.both)):
            ms, loop_ms = timing.timed(ours, options.repeats).ms, timing.once(theirs)
            found.add(title, form=form, **{"pass": name, "loop ms": loop_ms, "triton ms": ms, "speed-up": loop_ms / ms})
            found.goal(f"speed-up over the loop, {form}, {name}", loop_ms / ms, least=300)
            if name == "forward" and sequential is not None:
                ms = timing.timed(sequential(x.tensors, period), options.repeats).ms
                row = {"pass": name, "loop ms": loop_ms, "triton ms": ms, "speed-up": loop_ms / ms}
                found.add(title, form=f"sequential, {form}", **row)


def crossings(found: Findings, options: Options) -> None:
    title = f"forward ms, bf16, B=1 H={forms.HEADS} D=128"
    lengths = [1024 << i for i in range(2 if options.quick else 7)]
    times: dict[str, list[float]] = {}
    sequential = sequential_kernel(found)
    for T in lengths:
        row: Row = {"T": T}
        for form in (*forms.VARLA, *forms.SOFTMAX):
            x = forms.work(form, 1, T, forms.HEADS, 128)
            row[form] = timing.timed(x.forward, options.repeats).ms
            if sequential is not None and form in forms.VARLA:
                try:
                    period = forms.VARLA[form]
                    row[f"sequential, {form}"] = timing.timed(sequential(x.tensors, period), options.repeats).ms
                except Exception as error:  # the other forms are still measured
                    found.notes.append(f"sequential, {form}, T={T}: {text_of(error)}")
                    sequential = None
        found.add(title, **row)
        for form, ms in list(row.items())[1:]:
            times.setdefault(form, []).append(ms)
        torch.cuda.empty_cache()
        found.keep()
    for form in times:
        if form in forms.SOFTMAX or len(times[form]) < len(lengths):
            continue
        for other in forms.SOFTMAX:
            tokens = crossover(lengths, times[form], times[other])
            if form in forms.VARLA:
                found.goal(f"tokens where {form} passes {other}", tokens, most=12_000)
            else:
                found.notes.append(f"{form} passes {other} at {cell(tokens)} tokens")


def crossover(lengths: Sequence[int], ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The length from which `ours` stays faster, interpolated between measured lengths on logarithmic scales.

    None if it is never faster; the shortest measured length if it always is.
    """
    gaps = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    if gaps[-1] >= 0:
        return None
    last = max((i for i, gap in enumerate(gaps) if gap >= 0), default=-1)
    if last < 0:
        return float(lengths[0])
    part = gaps[last] / (gaps[last] - gaps[last + 1])
    return float(lengths[last] * (lengths[last + 1] / lengths[last]) ** part)


def sequential_kernel(found: Findings) -> Callable[[list[Tensor], int | None], Callable[[], object]] | None:
    """The paper's fused kernel, as a function (inputs, refresh period) -> call; None if it cannot be imported."""
    try:
        kernel = import_module("reproduction.sequential").vla_sequential
    except (ImportError, AttributeError) as error:
        found.notes.append(f"the sequential kernel was not measured: {text_of(error)}")
        return None
    from varla.ops.vla import VLASettings

    def prepared(tensors: list[Tensor], period: int | None) -> Callable[[], object]:
        q, k, v, u = (x.detach() for x in tensors)
        _, state = varla.vla(*(x[:, :0] for x in (q, k, v, u)), return_state=True)
        return partial(kernel, q, k, v, u, state, VLASettings(refresh_every=period))

    return prepared
