"""Which chunks are computed together: a plan that the host makes from the sequence lengths alone.

Sequences (rows of a batch, or parts of a packed one) are sorted by descending length and cut into chunks of n tokens.
Two nested loops go through them:

    block     a few rows at a time, so that memory does not grow with the batch
      segment   a few consecutive chunks of the rows that have tokens left

Inside a segment, everything except two short scans is computed for all chunks at once. The state before every chunk is
kept for the backward in "slots": one row of a buffer for each (row, chunk) pair, in the order of the loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# Tokens times heads in a segment. It is large enough to hide the overhead of PyTorch calls, and small enough that a
# segment's intermediates stay in the cache and add little to peak memory. A GPU needs larger segments.
SEGMENT_TOKENS = 4096
SEGMENT_TOKENS_GPU = 2**18


@dataclass(frozen=True)
class Segment:
    """Chunks first to first + chunks - 1 of the first `rows` rows of a block.

    The state before chunk g of the segment is kept in slots [slots[g], slots[g] + running[g]), where running[g] <= rows
    is the number of rows that have tokens in that chunk.
    """

    rows: int
    first: int
    chunks: int
    slots: tuple[int, ...]
    running: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """Rows [lo, hi) of the sorted order, and their segments."""

    lo: int
    hi: int
    segments: tuple[Segment, ...]


@dataclass(frozen=True)
class Plan:
    """order[i] is the sequence in sorted position i; starts and lengths are in that order; n is the chunk size."""

    n: int
    order: tuple[int, ...]
    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    blocks: tuple[Block, ...]


def slots_needed(rows: int, length: int, chunk_size: int, packed: bool) -> int:
    """An upper bound, from shapes alone, on the slots of a plan. It is exact if nothing is packed."""
    return length // chunk_size + rows if packed else rows * -(-length // chunk_size)


def make_plan(
    starts: Sequence[int], lengths: Sequence[int], chunk_size: int, heads: int, segment_tokens: int = SEGMENT_TOKENS
) -> Plan:
    """Plan for sequences that begin at `starts` (token indices within their row) and have `lengths`."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    ordered = [lengths[i] for i in order]
    n = max(1, min(chunk_size, ordered[0] if ordered else 1))
    units = max(1, segment_tokens // (heads * n))  # (row, chunk) pairs in one segment
    blocks, slot = [], 0
    alive = sum(length > 0 for length in ordered)
    for lo in range(0, alive, units):
        block, slot = _plan_block(ordered, lo, min(lo + units, alive), n, units, slot)
        blocks.append(block)
    return Plan(n, tuple(order), tuple(starts[i] for i in order), tuple(ordered), tuple(blocks))


def _plan_block(ordered: list[int], lo: int, hi: int, n: int, units: int, slot: int) -> tuple[Block, int]:
    counts = [-(-length // n) for length in ordered[lo:hi]]  # chunks of each row, descending
    running = [sum(count > chunk for count in counts) for chunk in range(counts[0])]
    segments, first = [], 0
    while first < len(running):
        rows, last = running[first], first + 1
        # Rows that end inside a segment are padded to its end. End the segment before half of the rows are padding.
        while last < len(running) and (last - first + 1) * rows <= units and 2 * running[last] > rows:
            last += 1
        slots = []
        for chunk in range(first, last):
            slots.append(slot)
            slot += running[chunk]
        segments.append(Segment(rows, first, last - first, tuple(slots), tuple(running[first:last])))
        first = last
    return Block(lo, hi, tuple(segments)), slot
