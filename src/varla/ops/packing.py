"""Packed batches: N sequences end to end in one batch row, with offsets cu_seqlens = [0, l1, l1 + l2, ...]."""

from itertools import pairwise

import torch
from torch import Tensor

from varla.ops.checks import check_cu_seqlens


def check_packing(cu_seqlens: object, B: int, T: int, device: torch.device) -> int:
    """Check cu_seqlens (None: nothing is packed) against B rows of T tokens; returns the number of sequences.

    Under torch.compile its values cannot be read here; the operator checks them when it runs.
    """
    if cu_seqlens is None or not check_cu_seqlens(cu_seqlens, B, device):
        return B
    if not torch.compiler.is_compiling():
        sequence_bounds(cu_seqlens, T)
    return cu_seqlens.shape[0] - 1


def sequence_bounds(cu_seqlens: Tensor, T: int) -> tuple[list[int], list[int]]:
    """(starts, lengths) of the packed sequences. Raises a ValueError that names the first wrong offset."""
    offsets = cu_seqlens.tolist()
    if offsets[0] != 0:
        raise ValueError(f"cu_seqlens must begin with 0, got {offsets[0]}")
    for i, (start, end) in enumerate(pairwise(offsets)):
        if end < start:
            raise ValueError(f"cu_seqlens must not fall, got {start} then {end} at index {i + 1}")
    if offsets[-1] != T:
        raise ValueError(f"cu_seqlens must end with the number of packed tokens T = {T}, got {offsets[-1]}")
    return offsets[:-1], [end - start for start, end in pairwise(offsets)]


def token_bounds(x: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Offsets of the sequences among the tokens of x [B, T, *], checked: [sequences + 1], the last is the end."""
    B, T = x.shape[:2]
    if cu_seqlens is None:
        return torch.arange(B + 1, device=x.device) * T
    sequence_bounds(cu_seqlens, T)  # a wrong offset would make a kernel read out of bounds
    return cu_seqlens.to(x.device, torch.int64)


def sequence_of(cu_seqlens: Tensor, T: int) -> Tensor:
    """The sequence that each of T packed tokens belongs to, [T]; on the device of cu_seqlens [N + 1]."""
    return torch.searchsorted(cu_seqlens[1:], torch.arange(T, device=cu_seqlens.device), right=True)


def pad_packed(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Packed [1, T, *] to [N, longest, *], with zeros after the end of each sequence."""
    _, lengths = sequence_bounds(cu_seqlens, x.shape[1])
    return torch.nn.utils.rnn.pad_sequence(list(torch.split(x[0], lengths)), batch_first=True)


def unpad_packed(x: Tensor, cu_seqlens: Tensor) -> Tensor:
    """The reverse of `pad_packed`: [N, longest, *] to [1, T, *]."""
    lengths = cu_seqlens.diff().to(x.device)
    return x[torch.arange(x.shape[1], device=x.device) < lengths[:, None]][None]
