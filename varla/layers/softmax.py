"""Softmax attention through PyTorch's scaled_dot_product_attention, with a key-value cache as its state."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from varla.layers.base import FLOAT32, Layer
from varla.ops import State
from varla.ops.arguments import check_number
from varla.ops.packing import pad_packed, unpad_packed


@dataclass(eq=False)
class KVState(State):
    """The cache: k [B, L, H, D], v [B, L, H, Dv], the position of each entry [B, L] (-1: none), tokens seen t [B].

    The one state here that grows with the sequence.
    """

    LAYOUT: ClassVar[dict[str, str]] = {"k": "B L H D", "v": "B L H Dv", "position": "B L", "t": "B"}

    k: Tensor
    v: Tensor
    position: Tensor
    t: Tensor


def rotate(x: Tensor, position: Tensor, base: float) -> Tensor:
    """Rotary position embedding (Su et al. 2021): x [B, T, H, D] turned by its position [B, T], pair by pair.

    Dimensions i and i + D / 2 are a pair, turned by position * base ** (-2 i / D). The angle is found in float64:
    float32 counts tokens exactly, but not their angles, beyond some ten thousand.
    """
    half = x.shape[-1] // 2
    rate = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = (position[..., None] * rate)[:, :, None]  # [B, T, 1, D / 2]
    working = torch.promote_types(x.dtype, torch.float32)
    cos, sin = angle.cos().to(working), angle.sin().to(working)
    first, second = x.to(working).chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """SDPA on [B, T, H, *], causal without a mask."""
    o = scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask, is_causal=mask is None
    )
    return o.transpose(1, 2)


def causal(q: Tensor, k: Tensor, v: Tensor, lengths: list[int] | None) -> Tensor:
    """Rows of these lengths, padded on the right, each from its beginning: [B, T, H, Dv], zeros at padding.

    Padding stands after everything that a token may look at, so that no mask is needed. Rows of about the same length
    go together: one long row among many short ones would make them all as long.
    """
    if lengths is None:
        return attention(q, k, v, None)
    groups: dict[int, list[int]] = {}
    for row, length in enumerate(lengths):
        if length:
            groups.setdefault((length - 1).bit_length(), []).append(row)
    o = torch.zeros(q.shape[:3] + v.shape[3:], dtype=v.dtype, device=v.device)
    for rows in groups.values():
        longest = max(lengths[row] for row in rows)
        index = torch.tensor(rows, device=q.device)
        part = attention(q[index, :longest], k[index, :longest], v[index, :longest], None)
        o[index, :longest] = part.to(o.dtype)
    return o


class SoftmaxAttention(Layer):
    """Causal softmax attention over everything seen.

    `rotary`: base of a rotary position embedding, or None for none. Keys are cached as they were turned.
    """

    name = "softmax"
    summary = "softmax attention (PyTorch SDPA); its state is a cache that grows with T"

    def __init__(self, d_model: int, n_heads: int, *, rotary: float | None = None, **shared: Any):
        """Options: `rotary`, and those that all mechanisms share."""
        super().__init__(d_model, n_heads, **shared)
        if rotary is not None:
            check_number("rotary", rotary, above=0)
            if self.head_dim % 2:
                raise ValueError(f"rotary turns pairs of dimensions: head_dim must be even, got {self.head_dim}")
        self.rotary = rotary

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, KVState]:
        """See Layer. Packed sequences are padded to the longest of them."""
        if cu_seqlens is None:
            return self._attend(q, k, v, memory, None)
        q, k, v = (pad_packed(tensor, cu_seqlens) for tensor in (q, k, v))
        o, state = self._attend(q, k, v, memory, cu_seqlens.diff().tolist())
        return unpad_packed(o, cu_seqlens), state

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, memory: Any, lengths: list[int] | None
    ) -> tuple[Tensor, KVState]:
        """`lengths`: of the rows, whose other tokens are padding; None: there is none."""
        B, T = q.shape[:2]
        valid = None
        if lengths is not None:
            valid = torch.arange(T, device=q.device) < torch.tensor(lengths, device=q.device)[:, None]
        if memory is not None and not (isinstance(memory, KVState) and memory.k.shape[0] == B):
            raise ValueError(f"state must hold a KVState of {B} rows, as an earlier call returned it")
        t = torch.zeros(B, dtype=torch.int64, device=q.device) if memory is None else memory.tensors()["t"]
        position = t[:, None] + torch.arange(T, device=q.device)
        if self.rotary is not None:
            q, k = rotate(q, position, self.rotary), rotate(k, position, self.rotary)
        cached = position if valid is None else torch.where(valid, position, -1)
        if memory is None:
            o = causal(q, k, v, lengths)
        else:
            past = memory.tensors()
            k, v = torch.cat((past["k"].to(k.dtype), k), 1), torch.cat((past["v"].to(v.dtype), v), 1)
            cached = torch.cat((past["position"], cached), 1)
            mask = (cached[:, None] >= 0) & (cached[:, None] <= position[..., None])
            if valid is not None:
                mask = mask | ~valid[..., None]  # a query that is padding looks anywhere: its output is dropped
            o = attention(q, k, v, mask[:, None])
        return o, KVState(k, v, cached, t + (T if valid is None else valid.sum(1)))

    def memory_bytes(self, T: int) -> int:
        """Keys, values and positions of T tokens, and the token count."""
        return T * (self.n_heads * (self.head_dim + self.value_dim) * FLOAT32 + 8) + 8

    def readings(self, memory: State, k: Tensor) -> dict[str, Tensor]:
        """The norm of the newest key: softmax attention has no matrix to watch."""
        return {"|k|": k.norm(dim=-1)}
