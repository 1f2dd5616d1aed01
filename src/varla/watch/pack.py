"""Writes as text for a page of limited size: base64 of rounded numbers.

Vectors are integers of 16 or 8 bits times a float32 scale, one for every head and token. Gates are float32. Both are
ordered by head, then token: the page reads one head at a time.
"""

import base64
import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varla.watch.trace import LayerTrace

PRECISIONS = (16, 8)
VECTORS, GATES = ("k", "v", "u", "decay"), ("beta", "decay", "strength")


def fit(layers: Sequence[LayerTrace], room: int) -> tuple[list[LayerTrace], int]:
    """(layers that fit in `room` bytes, bits of a number): all layers if 8 bits are enough for that, else some.

    Those are spread evenly, from the first layer to the last.
    """
    for bits in PRECISIONS:
        if sum(size(layer, bits) for layer in layers) <= room:
            return list(layers), bits
    bits = PRECISIONS[-1]
    for count in range(len(layers) - 1, 0, -1):
        chosen = [layers[i * (len(layers) - 1) // max(1, count - 1)] for i in range(count)]
        if sum(size(layer, bits) for layer in chosen) <= room:
            return chosen, bits
    T, needed = layers[0].writes.k.shape[1], size(layers[0], bits)
    raise ValueError(
        f"{T} tokens of one layer take {needed / 1e6:.1f} MB, the page has room for {room / 1e6:.1f} MB: "
        f"give a text of at most {T * room // needed} tokens"
    )


def size(layer: LayerTrace, bits: int) -> int:
    """Bytes of a layer in the page."""
    found = 0
    for x in _given(layer).values():
        if isinstance(x, Tensor):
            vectors = math.prod(x.shape[:3])
            found += 4 * vectors + (x.shape[-1] * vectors * bits // 8 if x.dim() == 4 else 0)
    return found * 4 // 3 + 1000  # base64, and the names of things


def pack(layer: LayerTrace, bits: int) -> dict[str, Any]:
    """A layer for JSON. An input that is another one, as u is k in Mesa, is that one's name."""
    k, v = layer.writes.k, layer.writes.v
    return {
        "index": layer.index,
        "mechanism": layer.mechanism,
        "H": k.shape[2],
        "D": k.shape[3],
        "Dv": v.shape[3],
        "rule": asdict(layer.writes.rule),
        "inputs": {name: x if isinstance(x, str) else encode(x, bits) for name, x in _given(layer).items()},
    }


def encode(x: Tensor, bits: int) -> dict[str, Any]:
    """[1, T, H] or [1, T, H, D] as base64."""
    by_head = x[0].float().movedim(1, 0).contiguous()  # [H, T] or [H, T, D]
    if not bool(torch.isfinite(by_head).all()):
        raise ValueError("the model computes NaN or infinity for this text: there is nothing to show")
    if x.dim() == 3:
        return {"data": _text(by_head.numpy())}
    most = 2 ** (bits - 1) - 1
    scale = by_head.abs().amax(-1) / most
    rounded = (by_head / torch.where(scale == 0, 1, scale)[..., None]).round().clamp(-most, most)
    return {"bits": bits, "scale": _text(scale.numpy()), "data": _text(rounded.numpy().astype(f"<i{bits // 8}"))}


def _given(layer: LayerTrace) -> dict[str, Tensor | str]:
    """The inputs that the mechanism has; the name of another one where they are the same tensor."""
    found: dict[str, Tensor | str] = {}
    first: dict[int, str] = {}
    for name in dict.fromkeys((*VECTORS, *GATES)):
        x = getattr(layer.writes, name)
        if x is not None:
            found[name] = first.get(id(x), x)
            first.setdefault(id(x), name)
    return found


def _text(array: "np.ndarray[Any, Any]") -> str:
    return base64.b64encode(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()).decode()
