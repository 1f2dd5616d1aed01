"""Times of calls, on a GPU if there is one, else on the CPU."""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import logsigmoid, scaled_dot_product_attention

import varla
from reproduction.runs import Preset

MECHANISMS = ("softmax", "linear", "deltanet-paper", "vla")
FLASH, NO_REFRESH = "softmax, flash kernel", "vla, no refresh"  # other forms of two of them


def device() -> str:
    """ "cuda" if there is a GPU, else "cpu"."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def device_name() -> str:
    """The name of the device."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"


def need(gpu: bool) -> None:
    """Raise an error if a GPU is required and there is none."""
    if gpu and not torch.cuda.is_available():
        raise RuntimeError("this measurement needs a GPU, and PyTorch finds none; --preset quick times the CPU")


def place(preset: Preset) -> dict[str, bool]:
    """The full preset requires a GPU: a CPU's times, once recorded, would never be replaced by a GPU's."""
    return {} if preset.quick else {"gpu": True}


def medians(calls: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each call after a warm-up. Calls take turns, so that a slow moment affects all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for i in range(rounds + 1):
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            call()
            wait()
            if i:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def wait() -> None:
    """Wait for the GPU, if there is one: its calls return before they are done."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def forward(mechanism: str, B: int, T: int, H: int, D: int, backend: str = "auto", dtype: str = "float32") -> Any:
    """A function without arguments that runs a mechanism's forward on random inputs [B, T, H, D].

    `backend` is the operator's; softmax attention always uses PyTorch's scaled_dot_product_attention.
    """
    generator = torch.Generator(device()).manual_seed(0)
    q, k, v, u = (
        torch.randn(B, T, H, D, generator=generator, device=device()).to(getattr(torch, dtype)) for _ in range(4)
    )
    if mechanism in ("softmax", FLASH):
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        chosen = nullcontext if mechanism == "softmax" else partial(sdpa_kernel, SDPBackend.FLASH_ATTENTION)

        def attend() -> Tensor:
            with chosen():
                return scaled_dot_product_attention(q, k, v, is_causal=True)

        return lambda: untracked(attend)
    if mechanism == "linear":
        return lambda: untracked(lambda: varla.linear_attention(q, k, v, backend=backend))
    if mechanism == "deltanet-paper":
        gate = logsigmoid(u[..., 0])
        return lambda: untracked(lambda: varla.decayed_delta_rule(q, k, v, gate, backend=backend))
    if mechanism in ("vla", NO_REFRESH):
        options: dict[str, Any] = {} if mechanism == "vla" else {"refresh_every": None}
        return lambda: untracked(lambda: varla.vla(q, k, v, u, backend=backend, **options))
    known = (*MECHANISMS, FLASH, NO_REFRESH)
    raise ValueError(f"mechanism must be one of {'; '.join(known)}, got {mechanism!r}")


@torch.no_grad()
def untracked(call: Callable[[], Tensor]) -> Tensor:
    """The result of the call, without a graph for the backward."""
    return call()
