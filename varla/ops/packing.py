"""Packed batches: N sequences laid end to end in one batch row, cut at cu_seqlens = [0, l1, l1 + l2, ...]."""

from itertools import pairwise

from torch import Tensor


def sequence_bounds(cu_seqlens: Tensor, T: int) -> tuple[list[int], list[int]]:
    """(starts, lengths) of the packed sequences. Raises a ValueError that names the first offset that is wrong."""
    offsets = cu_seqlens.tolist()
    if offsets[0] != 0:
        raise ValueError(f"cu_seqlens must begin with 0, got {offsets[0]}")
    for i, (start, end) in enumerate(pairwise(offsets)):
        if end < start:
            raise ValueError(f"cu_seqlens must not fall, got {start} then {end} at index {i + 1}")
    if offsets[-1] != T:
        raise ValueError(f"cu_seqlens must end with the number of packed tokens T = {T}, got {offsets[-1]}")
    return offsets[:-1], [end - start for start, end in pairwise(offsets)]
