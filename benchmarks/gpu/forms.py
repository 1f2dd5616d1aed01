"""The forms that are timed: varla's kernels, PyTorch's softmax attention and the peers, each with suitable inputs."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import logsigmoid, scaled_dot_product_attention, softplus

import varla

DEVICE = "cuda"
HEADS = 16
VARLA: dict[str, int | None] = {"varla, no refresh": None, "varla, refresh 20": 20}
SOFTMAX = {"SDPA": None, "SDPA, flash": SDPBackend.FLASH_ATTENTION}  # PyTorch's choice; the one that the paper names
PEERS = {"DeltaNet": ("fla.ops.delta_rule", "chunk_delta_rule"), "MesaNet": ("fla.ops.mesa_net", "chunk_mesa_net")}


@dataclass(frozen=True)
class Work:
    """An operator and its inputs."""

    call: Callable[..., Tensor]
    tensors: list[Tensor]
    grad: Tensor

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.call(*self.tensors)

    def both(self) -> object:
        return torch.autograd.grad(self.call(*self.tensors), self.tensors, self.grad)


def work(form: str, B: int, T: int, heads: int, D: int, dtype: torch.dtype = torch.bfloat16) -> Work:
    """A form with random inputs in its fastest layout. Inputs are raw: each form normalises keys as its layer does."""

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=dtype)

    rest: list[Tensor] = []
    call: Callable[..., Any]
    if form in VARLA:
        rest = [leaf(B, T, heads, D)]
        call = partial(varla.vla, refresh_every=VARLA[form], backend="triton")
    elif form in SOFTMAX:
        call = partial(softmax, only=SOFTMAX[form])
    else:
        call = partial(first_of, getattr(import_module(PEERS[form][0]), PEERS[form][1]))
        rest = [leaf(B, T, heads).sigmoid()]
        if form == "MesaNet":  # decay, beta and lambda in float32, as its documentation recommends
            decay = logsigmoid(leaf(B, T, heads).float())
            rest = [decay, rest[0].float(), softplus(leaf(heads, D).float()) + 0.25]
    shape = (B, heads, T, D) if form in SOFTMAX else (B, T, heads, D)
    tensors = [x.detach().requires_grad_() for x in (*(leaf(*shape) for _ in range(3)), *rest)]
    return Work(call, tensors, torch.randn_like(tensors[2]))


def first_of(peer: Callable[..., Any], *tensors: Tensor) -> Tensor:
    """A peer's outputs, without its states."""
    o: Tensor = peer(*tensors, use_qk_l2norm_in_kernel=True)[0]
    return o


def softmax(q: Tensor, k: Tensor, v: Tensor, only: SDPBackend | None) -> Tensor:
    if only is None:
        return scaled_dot_product_attention(q, k, v, is_causal=True)
    with sdpa_kernel(only):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


def see_peers(folder: str | None) -> None:
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)
