"""Softmax attention through PyTorch's scaled_dot_product_attention, with a key-value cache as its state."""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.utils.rnn import pad_sequence

from varla.arguments import check_number
from varla.layers.base import Layer, Recorder
from varla.ops import State
from varla.ops.packing import pad_packed, unpad_packed
from varla.ops.rotary import angles, rotate
from varla.ops.split import Packing, Split, local


class KVState(State):
    """The cache: k [B, L, H, D], v [B, L, H, Dv], the position of each entry [B, L], tokens seen t [B].

    The one state here that grows with the sequence.
    """

    LAYOUT: ClassVar[dict[str, str]] = {"k": "B L H D", "v": "B L H Dv", "position": "B L", "t": "B"}

    k: Tensor
    v: Tensor
    position: Tensor
    t: Tensor


class PaddedKVState(KVState):
    """A cache of rows of different lengths: the position of an entry that is padding is -1.

    A class of its own, so that the type tells whether a step needs a mask, without reading the positions.
    """


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, record: Recorder | None = None) -> Tensor:
    """Softmax attention on [B, T, H, *]. Without a mask it is causal; a single query attends to everything.

    The weights [B, H, T, L] are passed through `record`, if there is one.
    """
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    causal = mask is None and q.shape[2] != 1
    if record is None and causal:  # a constant: where the length is traced, `causal` is no plain bool
        return scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
    if record is None:
        return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)
    # PyTorch's SDPA does not return its weights. The output has to come from these, so that gradients reach them.
    if causal:
        mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
    weights = scores.softmax(-1, dtype=torch.promote_types(q.dtype, torch.float32)).to(v.dtype)
    return (record(weights) @ v).transpose(1, 2)


def causal_packed(q: Tensor, k: Tensor, v: Tensor, lengths: list[int]) -> Tensor:
    """Packed sequences of these lengths, each from its beginning: [1, T, H, *] to [1, T, H, Dv].

    Sequences of similar length are batched as rows, padded on the right. A token never attends to padding, because the
    padding comes after it: no mask is needed, and no short sequence is padded to the longest.
    """
    groups: dict[int, list[int]] = {}
    for i, length in enumerate(lengths):
        if length:
            groups.setdefault((length - 1).bit_length(), []).append(i)
    parts = [torch.split(tensor[0], lengths) for tensor in (q, k, v)]
    found: dict[int, Tensor] = {}
    for rows in groups.values():
        padded_q, padded_k, padded_v = (pad_sequence([part[i] for i in rows], batch_first=True) for part in parts)
        o = attention(padded_q, padded_k, padded_v, None)
        found |= {i: row[: lengths[i]] for i, row in zip(rows, o, strict=True)}
    return torch.cat([found[i] for i in sorted(found)])[None] if found else v


def positions(t: Tensor, T: int, cu_seqlens: Tensor | None) -> Tensor:
    """Positions of T new tokens after t [B] others: [B, T], or [1, T] where they are packed."""
    new = torch.arange(T, device=t.device)
    if cu_seqlens is None:
        return t[:, None] + new
    cu_seqlens = cu_seqlens.to(t.device)
    return (new + (t - cu_seqlens[:-1]).repeat_interleave(cu_seqlens.diff(), output_size=T))[None]


def cache_packed(k: Tensor, v: Tensor, t: Tensor, cu_seqlens: Tensor) -> KVState:
    """Keys and values [1, T, H, *] of packed sequences as rows, padded to the longest."""
    k, v = pad_packed(k, cu_seqlens), pad_packed(v, cu_seqlens)
    lengths, place = cu_seqlens.diff().to(t.device), torch.arange(k.shape[1], device=t.device)
    position = torch.where(place < lengths[:, None], t[:, None] + place, -1)
    kind = KVState if len(set(cu_seqlens.diff().tolist())) == 1 else PaddedKVState
    return kind(k, v, position, t + lengths)


def join(past: KVState | None, new: KVState) -> KVState:
    """The past's entries and the new ones."""
    if past is None:
        return new
    kind = PaddedKVState if isinstance(past, PaddedKVState) else type(new)
    return kind(
        torch.cat((past.k.to(new.k.dtype), new.k), 1),
        torch.cat((past.v.to(new.v.dtype), new.v), 1),
        torch.cat((past.position, new.position), 1),
        new.t,
    )


def attend_and_append(
    q: Tensor, past: KVState | None, new: KVState, record: Recorder | None = None
) -> tuple[Tensor, KVState]:
    """(o [B, T, H, Dv], joined cache) of queries [B, T, H, D] that attend to the past and causally to the new tokens.

    One new token a row without padding attends to everything, so it needs no mask.
    """
    both = join(past, new)
    if type(both) is KVState and q.shape[1] == 1:
        return attention(q, both.k, both.v, None, record), both
    own, entry = new.position[:, :, None], both.position[:, None]
    mask = (entry >= 0) & (entry <= own) | (own < 0)  # the output of a padding query is dropped
    return attention(q, both.k, both.v, mask[:, None], record), both


class SoftmaxAttention(Layer):
    """Causal softmax attention over everything seen.

    `rotary`: base of a rotary position embedding, or None for none. Keys are cached after rotation.
    """

    name = "softmax"
    summary = "softmax attention (PyTorch SDPA); its state is a cache that grows with T"
    state_class = KVState

    def __init__(self, d_model: int, n_heads: int, *, rotary: float | None = None, **shared: Any):
        """Options: `rotary`, and those that all mechanisms share."""
        super().__init__(d_model, n_heads, **shared)
        check_number("rotary", rotary, above=0, or_none=True)
        if rotary is not None and self.head_dim % 2:
            raise ValueError(f"rotary turns pairs of dimensions: head_dim must be even, got {self.head_dim}")
        self.rotary = rotary

    def mix(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Packing
    ) -> tuple[Tensor, KVState]:
        """See Layer. The cache of packed sequences is padded to the longest of them.

        Where tokens are spread over ranks, every rank attends with some of the heads to all tokens, and its state is
        the cache of these heads.
        """
        if not isinstance(cu_seqlens, Split) or cu_seqlens.ranks == 1:
            return self._mix(None, q, k, v, memory, local(cu_seqlens))
        if memory is not None:
            raise ValueError("softmax attention over ranks has no initial state: its cache is not split")
        split = cu_seqlens
        self.check_ranks(split.ranks)
        everything = None if split.offsets is None else torch.tensor(split.offsets)
        q, k, v = (split.to_heads(x) for x in (q, k, v))
        o, state = self._mix(None, q, k, v, None, everything)
        return split.to_tokens(o), state

    def mix_recorded(self, record: Recorder, *inputs: Any) -> tuple[Tensor, KVState]:
        """See Layer. The weights are [B, H, T, cached + T]; of N packed sequences [N, H, longest, cached + longest]."""
        if isinstance(inputs[-1], Split):
            raise ValueError("attention weights are not recorded where tokens are spread over ranks")
        return self._mix(record, *inputs[1:])

    def _mix(
        self, record: Recorder | None, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Tensor | None
    ) -> tuple[Tensor, KVState]:
        B = q.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        if memory is not None and not (isinstance(memory, KVState) and memory.k.shape[0] == B):
            raise ValueError(f"state must hold a KVState of {B} rows, as an earlier call returned it")
        t = torch.zeros(B, dtype=torch.int64, device=q.device) if memory is None else memory.t
        position = positions(t, q.shape[1], cu_seqlens)
        if self.rotary is not None:
            fresh = memory is None and cu_seqlens is None  # all rows have the same positions
            turned = angles(position[:1] if fresh else position, self.head_dim, self.rotary, q.dtype)
            q, k = rotate(q, *turned), rotate(k, *turned)
        if cu_seqlens is None:
            new = KVState(k, v, position, t + q.shape[1])
            if memory is None:
                return attention(q, k, v, None, record), new
            return attend_and_append(q, memory, new, record)
        new = cache_packed(k, v, t, cu_seqlens)
        if memory is None and record is None:
            return causal_packed(q, k, v, cu_seqlens.diff().tolist()), new
        o, state = attend_and_append(pad_packed(q, cu_seqlens), memory, new, record)
        return unpad_packed(o, cu_seqlens), state

    def check_ranks(self, ranks: int) -> None:
        """See Layer: every rank gets as many heads."""
        if self.n_heads % ranks:
            raise ValueError(f"softmax attention splits heads over ranks: {ranks} must divide {self.n_heads} heads")

    def readings(self, memory: State, k: Tensor) -> dict[str, Tensor]:
        """The norm of the newest key: softmax attention has no matrix to watch."""
        return {"|k|": k.norm(dim=-1)}
