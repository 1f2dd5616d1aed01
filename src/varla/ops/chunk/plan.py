"""Which chunks are worked on together: a plan made on the host from the sequence lengths alone.

Sequences (rows of a batch, or the parts of a packed one) are sorted by falling length, cut into chunks of n tokens,
and handled in two nested loops:

    block     a few rows at a time, so that memory does not grow with the batch
      segment   a few consecutive chunks of those rows that are still running

Inside a segment everything except two short scans is done for all its chunks at once. The state before every chunk
is kept for the backward, in "slots": one row of a buffer for each (row, chunk) pair, in the order of the loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass

# Tokens times heads worked on at a time. Large enough that the cost of calling an operator vanishes, small enough
# that a segment's intermediates stay in the cache and are a small part of peak memory. A GPU has much of both to fill.
SEGMENT_TOKENS = 4096
SEGMENT_TOKENS_GPU = 2**18


@dataclass(frozen=True)
class Segment:
    """`chunks` chunks from number `first` on, of the first `rows` rows of its block.

    The state before chunk g of the segment is kept in slots [slots[g], slots[g] + running[g]), where running[g] <= rows
    is the number of rows that have tokens left in that chunk.
    """

    rows: int
    first: int
    chunks: int
    slots: tuple[int, ...]
    running: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """Rows [lo, hi) of the sorted order, and the segments they are worked through in."""

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
    """An upper bound, from shapes alone, on the slots a plan uses; exact when nothing is packed."""
    return length // chunk_size + rows if packed else rows * -(-length // chunk_size)


def make_plan(
    starts: Sequence[int], lengths: Sequence[int], chunk_size: int, heads: int, segment_tokens: int = SEGMENT_TOKENS
) -> Plan:
    """Plan the sequences that begin at `starts` (a token index within their row) and have `lengths`."""
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
    counts = [-(-length // n) for length in ordered[lo:hi]]  # chunks of each row, falling
    running = [sum(count > chunk for count in counts) for chunk in range(counts[0])]
    segments, first = [], 0
    while first < len(running):
        rows, last = running[first], first + 1
        # Rows that end inside a segment are padded to its end: stop before half of them are padding.
        while last < len(running) and (last - first + 1) * rows <= units and 2 * running[last] > rows:
            last += 1
        slots = []
        for chunk in range(first, last):
            slots.append(slot)
            slot += running[chunk]
        segments.append(Segment(rows, first, last - first, tuple(slots), tuple(running[first:last])))
        first = last
    return Block(lo, hi, tuple(segments)), slot
