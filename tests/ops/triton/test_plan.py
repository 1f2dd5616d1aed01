"""The tables that tell programs what to work on."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from varla.ops.triton.plan import CHUNK, GPU_PROGRAMS, SPANS, make_plan, span_length, spans_needed

LENGTHS = st.lists(st.integers(0, 3000), min_size=1, max_size=6)


@given(LENGTHS, st.sampled_from(SPANS))
def test_every_token_is_in_one_chunk_and_one_span(lengths: list[int], span: int) -> None:
    plan = make_plan(tuple(lengths), span, torch.device("cpu"))
    tokens = list(range(sum(lengths)))
    assert [t for start, count in plan.chunks.tolist() for t in range(start, start + count)] == tokens
    assert [t for start, count, *_ in plan.spans.tolist() for t in range(start, start + count)] == tokens
    assert plan.sequences[:, 1].tolist() == lengths
    assert plan.empty == tuple(i for i, length in enumerate(lengths) if length == 0)


@given(LENGTHS, st.sampled_from(SPANS))
def test_pieces_know_their_place(lengths: list[int], span: int) -> None:
    plan = make_plan(tuple(lengths), span, torch.device("cpu"))
    starts = torch.tensor([0, *lengths]).cumsum(0).tolist()
    for start, count, sequence, position, last in plan.spans.tolist():
        assert start == starts[sequence] + position
        assert last == (position + count == lengths[sequence])
        assert position % CHUNK == 0  # so that no chunk lies in two spans
    for (start, count), (sequence, position) in zip(plan.chunks.tolist(), plan.chunk_position.tolist(), strict=True):
        assert start == starts[sequence] + position
        assert 1 <= count <= CHUNK
    for sequence in range(len(lengths)):
        mine = plan.spans[plan.span_first[sequence] : plan.span_first[sequence + 1]]
        assert set(mine[:, 2].tolist()) == {sequence}
        chunks = plan.chunk_position[plan.chunk_first[sequence] : plan.chunk_first[sequence + 1]]
        assert set(chunks[:, 0].tolist()) <= {sequence}


@given(LENGTHS, st.sampled_from(SPANS))
def test_the_bound_from_shapes_holds(lengths: list[int], span: int) -> None:
    packed = make_plan(tuple(lengths), span, torch.device("cpu"))
    assert len(packed.spans) <= spans_needed(len(lengths), sum(lengths), span, packed=True)
    even = make_plan((lengths[0],) * len(lengths), span, torch.device("cpu"))
    assert len(even.spans) == spans_needed(len(lengths), lengths[0] * len(lengths), span, packed=False)


def test_spans_are_long_where_that_fills_a_gpu() -> None:
    assert span_length(GPU_PROGRAMS * SPANS[0], heads=1) == SPANS[0]
    assert span_length(GPU_PROGRAMS * SPANS[0] - 1, heads=1) == SPANS[1]
    assert span_length(1, heads=1) == SPANS[-1]
