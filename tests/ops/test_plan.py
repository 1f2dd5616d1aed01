"""The plan covers every token once, keeps within its bounds, and pads little."""

import hypothesis.strategies as st
from hypothesis import given, settings

from varla.ops.chunk import plan
from varla.ops.chunk.plan import make_plan, slots_needed

LENGTHS = st.lists(st.integers(0, 400), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 70), st.integers(1, 9))
@settings(deadline=None, derandomize=True)
def test_every_chunk_of_every_row_is_in_exactly_one_segment(lengths, chunk_size, heads):
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    made = make_plan(starts, lengths, chunk_size, heads)
    assert sorted(made.order) == list(range(len(lengths)))
    assert [lengths[i] for i in made.order] == list(made.lengths)
    assert [starts[i] for i in made.order] == list(made.starts)
    seen, slots = [], []
    for block in made.blocks:
        expected = 0
        for segment in block.segments:
            assert segment.first == expected
            expected += segment.chunks
            for g, running in enumerate(segment.running):
                slots.extend(range(segment.slots[g], segment.slots[g] + running))
                seen.extend((made.order[block.lo + row], segment.first + g) for row in range(running))
    wanted = [(row, chunk) for row, length in enumerate(lengths) for chunk in range(-(-length // made.n))]
    assert sorted(seen) == wanted
    assert sorted(slots) == list(range(len(slots)))
    assert len(slots) <= slots_needed(len(lengths), sum(lengths), chunk_size, packed=True)


@given(st.integers(0, 9), st.integers(0, 400), st.integers(1, 70), st.integers(1, 9))
@settings(deadline=None, derandomize=True)
def test_slots_of_a_dense_batch_are_counted_exactly(rows, T, chunk_size, heads):
    made = make_plan([0] * rows, [T] * rows, chunk_size, heads)
    used = sum(sum(segment.running) for block in made.blocks for segment in block.segments)
    assert used == slots_needed(rows, T, chunk_size, packed=False)


@given(LENGTHS, st.integers(1, 70), st.integers(1, 9))
@settings(deadline=None, derandomize=True)
def test_segments_are_small_and_mostly_full(lengths, chunk_size, heads):
    made = make_plan([0] * len(lengths), lengths, chunk_size, heads)
    for block in made.blocks:
        for segment in block.segments:
            tokens = segment.rows * segment.chunks * made.n * heads
            assert tokens <= plan.SEGMENT_TOKENS or segment.rows * segment.chunks == 1
            assert 2 * sum(segment.running) > segment.rows * segment.chunks
