"""Section `parts`: the parts of a layer other than its mechanism, compared with PyTorch."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu import forms, timing
from benchmarks.gpu.record import Findings, Options
from varla.training.graph import Graphed

SIZE = (32, 2048, 8, 64)  # B, T, heads, D: a step of the 30M language models
WIDE = 3  # inner width of SwiGLU, in multiples of the width

Call = Callable[..., Any]


def run(found: Findings, options: Options) -> None:
    """Time each part, forward and with backward, in CUDA graphs: launched one by one, the host would be the limit."""
    copy = timing.copy_rate(options.repeats)
    B, T, heads, D = SIZE
    title = f"bf16, {B * T} tokens, width {heads * D}"
    for name, (ours, theirs, inputs) in cases().items():
        row: dict[str, Any] = {"part": name}
        for form, call in (("varla", ours), ("PyTorch", theirs)):
            torch.cuda.empty_cache()
            for way, work in (("forward", partial(forward, call, inputs)), ("both", both(call, inputs))):
                row[f"{form}, {way} us"] = 1e3 * timing.timed(graphed(work), options.repeats).ms
        ways = ("forward", "both")
        row |= {f"{way}, times as fast": row[f"PyTorch, {way} us"] / row[f"varla, {way} us"] for way in ways}
        moved = traffic(ours, inputs)
        row |= {
            f"{way}, of copy's rate": gigabytes / row[f"varla, {way} us"] * 1e6 / copy
            for way, gigabytes in zip(ways, moved, strict=True)
        }
        found.add(title, **row)
        found.keep()


def cases() -> dict[str, tuple[Call, Call, list[Tensor]]]:
    """(ours, PyTorch's, inputs that require gradients) by name."""
    from varla.ops import convolution, features, gate, norm, rotary
    from varla.ops.triton import convolution as convolution_triton
    from varla.ops.triton import features as feature_kernels
    from varla.ops.triton import gate as gate_triton
    from varla.ops.triton import norm as norm_triton
    from varla.ops.triton import rotary as rotary_triton

    B, T, heads, D = SIZE
    width, bf16 = heads * D, torch.bfloat16

    def random(*shape: int, dtype: torch.dtype = bf16) -> Tensor:
        return torch.randn(*shape, device=forms.DEVICE).to(dtype).requires_grad_()

    before = torch.zeros(B, 3, width, device=forms.DEVICE)
    x, heads_of = random(B, T, width), random(B, T, heads, D)
    weight = random(width, dtype=torch.float32)
    turned = rotary.angles(torch.arange(T, device=forms.DEVICE)[None], D, 1e4, bf16)
    unit = ("identity", True, 1.0, bf16)

    def plain_convolution(x: Tensor, filters: Tensor) -> Tensor:
        return convolution.plain(x, filters.to(x.dtype), None, before, None)  # as under autocast

    return {
        "convolution, 4 wide, SiLU": (
            lambda x, filters: convolution_triton.convolve(x, filters, None, before, None),
            plain_convolution,
            [x, random(width, 4, dtype=torch.float32)],
        ),
        "RMS norm of float32": (
            lambda x, weight: norm_triton.normalize(x, weight, 1e-6, bf16),
            lambda x, weight: norm.plain(x, weight, 1e-6, bf16),
            [random(B, T, width, dtype=torch.float32), weight],
        ),
        "RMS norm of bfloat16": (
            lambda x, weight: norm_triton.normalize(x, weight, 1e-6, bf16),
            lambda x, weight: norm.plain(x, weight, 1e-6, bf16),
            [x, weight],
        ),
        "rotary positions": (
            lambda x: rotary_triton.turn(x, *turned, False),
            lambda x: rotary.plain(x, *turned),
            [heads_of],
        ),
        "gate of SwiGLU": (gate_triton.gate, gate.plain, [random(B, T, WIDE * width), random(B, T, WIDE * width)]),
        "keys of the delta rule": (
            lambda k, beta: feature_kernels.scaled_features(k, beta, *unit),
            lambda k, beta: features.scaled_features(k, beta, *unit),
            [heads_of, random(B, T, heads, 1)],
        ),
    }


@torch.no_grad()
def forward(call: Call, inputs: list[Tensor]) -> tuple[Tensor, ...]:
    return tuple(several(call(*inputs)))


def both(call: Call, inputs: list[Tensor]) -> Callable[[], tuple[Tensor, ...]]:
    """The call and its backward, with gradients of the outputs that are made once."""
    grads = [torch.randn_like(y) for y in several(call(*inputs))]
    return lambda: torch.autograd.grad(several(call(*inputs)), inputs, grads)


def traffic(call: Call, inputs: list[Tensor]) -> tuple[float, float]:
    """Gigabytes that the forward, and forward and backward, must move if each tensor is read or written once."""
    read = sum(x.nbytes for x in inputs)
    written = sum(y.nbytes for y in several(call(*inputs)))
    backward = read + written + read  # reads inputs and gradients of the outputs, writes gradients of the inputs
    return (read + written) / 1e9, (read + written + backward) / 1e9


def several(found: Any) -> list[Tensor]:
    return list(found) if isinstance(found, (list, tuple)) else [found]


def graphed(call: Callable[[], tuple[Tensor, ...]]) -> Callable[[], object]:
    """The call as a CUDA graph, from its fourth run on. Without a GPU, the call itself."""
    return call if forms.DEVICE == "cpu" else Graphed(call, torch.Generator(forms.DEVICE))
