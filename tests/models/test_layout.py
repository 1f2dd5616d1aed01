"""Which tokens are read: masks, packed sequences, and what is refused."""

import pytest
import torch

from varla.models.layout import find_layout

CPU = torch.device("cpu")


def find(B, T, mask=None, positions=None, cu_seqlens=None, past=0):
    return find_layout((B, T), CPU, mask, positions, cu_seqlens, past)


def test_nothing_to_lay_out():
    assert find(2, 5) is None
    assert find(2, 5, mask=torch.ones(2, 5)) is None
    assert find(2, 5, mask=torch.cat((torch.zeros(2, 3), torch.ones(2, 5)), 1), past=3) is None
    assert find(2, 5, positions=torch.arange(5)[None]) is None
    assert find(2, 1, positions=torch.zeros(2, 1)) is None


def test_padding_leaves_a_sequence_for_every_row_even_an_empty_one():
    layout = find(3, 4, mask=torch.tensor([[0, 1, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]]))
    assert layout.cu_seqlens.tolist() == [0, 3, 3, 5]
    assert layout.index.tolist() == [1, 2, 3, 8, 9]
    assert (layout.rows, layout.longest) == (3, 4)
    x = torch.arange(12.0).view(3, 4, 1)
    back = layout.unpack(layout.pack(x))
    assert back.flatten().tolist() == [0, 1, 2, 3, 0, 0, 0, 0, 8, 9, 0, 0]
    assert layout.predicts(CPU).int().tolist() == [[0, 1, 1, 0], [0, 0, 0, 0], [1, 0, 0, 0]]


def test_what_follows_a_hole_is_not_predicted_from_before_it():
    layout = find(1, 4, mask=torch.tensor([[1, 0, 1, 1]]))
    assert layout.predicts(CPU).int().tolist() == [[0, 0, 1, 0]]


def test_packed_by_positions_or_offsets():
    by_positions = find(1, 6, positions=torch.tensor([[0, 1, 0, 0, 1, 2]]))
    by_offsets = find(1, 6, cu_seqlens=torch.tensor([0, 2, 3, 6], dtype=torch.int32))
    for layout in (by_positions, by_offsets):
        assert layout.cu_seqlens.tolist() == [0, 2, 3, 6]
        assert layout.index is None
        assert (layout.rows, layout.longest) == (3, 3)
        assert layout.predicts(CPU).int().tolist() == [[1, 0, 0, 1, 1, 0]]


def test_positions_begin_nothing_after_a_cache():
    assert find(1, 4, positions=torch.tensor([[0, 1, 0, 1]]), past=2) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mask": torch.ones(2, 4)}, r"attention_mask must have shape \[2, 5\], got \[2, 4\]"),
        ({"mask": torch.ones(2, 4), "past": 3}, r"attention_mask must have shape \[2, 5\] or \[2, 8\], got \[2, 4\]"),
        ({"mask": torch.ones(1, 5)}, r"got \[1, 5\]"),
        ({"mask": torch.ones(2, 1, 5, 5)}, r"1 for tokens and 0 for padding, got \[2, 1, 5, 5\]"),
        ({"mask": torch.zeros(2, 5)}, "got a mask of floats that are all 0; is it an additive mask"),
        ({"mask": torch.zeros(2, 8, dtype=torch.float16), "past": 3}, "got a mask of floats that are all 0"),
        ({"mask": {"full_attention": None}}, "got dict"),
        ({"positions": torch.zeros(2, 4)}, r"position_ids must have shape \[2, 5\] or \[1, 5\], got \[2, 4\]"),
        ({"cu_seqlens": torch.tensor([0, 5])}, "B must be 1, got 2"),
        ({"cu_seqlens": torch.tensor([0, 5]), "mask": torch.ones(2, 5)}, "cu_seqlens or attention_mask, not both"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        find(2, 5, **arguments)


def test_wrong_offsets_are_refused():
    with pytest.raises(ValueError, match="cu_seqlens must end with the number of packed tokens T = 5, got 4"):
        find(1, 5, cu_seqlens=torch.tensor([0, 4]))
