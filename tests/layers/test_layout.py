"""attention_mask on layers: padding anywhere changes no state and no other token, for every mechanism."""

import pytest
import torch

from tests.layers.test_layers import CASES, NAMES, make
from tests.ops.cases import error, randn

# Left, right and holes; a row that is all padding, and one without any.
MASK = torch.tensor(
    [
        [0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1],
        [1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0],
        [0, 1, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1],
        [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ]
)
B, T = MASK.shape


def states_differ_by(padded, row, alone):
    """The largest error of one row's state; softmax's cache is compared without its padding."""
    found = {name: x[row : row + 1] for name, x in padded.tensors().items()}
    if "position" in found:
        real = found["position"][0] >= 0
        found = {name: x[:, real] if name in ("k", "v", "position") else x for name, x in found.items()}
    return max(error(found[name], x) for name, x in alone.tensors().items())


@pytest.mark.parametrize(("name", "options"), CASES)
def test_padding_changes_nothing_else_with_and_without_a_state(name, options):
    layer, x, before = make(name, options), randn(B, T, 24, seed=1), randn(B, 5, 24, seed=2)
    _, started = layer(before)
    for state in (None, started):
        y, after = layer(x, state, attention_mask=MASK)
        assert y[MASK == 0].eq(0).all()
        for row, keep in enumerate(MASK.bool()):
            own = None if state is None else state.map(lambda s, row=row: s[row : row + 1])
            alone, final = layer(x[row : row + 1, keep], own)
            assert error(y[row : row + 1, keep], alone) <= 1e-12
            assert states_differ_by(after, row, final) <= 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_what_follows_padding_goes_on_from_the_real_tokens(name):
    layer, x = make(name, {"conv": 4}), randn(B, T + 2, 24, seed=1)
    _, state = layer(x[:, :T], attention_mask=MASK)
    steps = torch.tensor([[1, 0], [0, 1], [1, 1], [1, 0], [1, 1]])
    outputs = []
    for t in range(2):  # one token at a time, where some rows have none
        y, state = layer(x[:, T + t : T + t + 1], state, attention_mask=steps[:, t : t + 1])
        outputs.append(y)
    keep = torch.cat((MASK, steps), 1).bool()
    for row in range(B):
        wanted = layer(x[row : row + 1, keep[row]])[0][0, MASK[row].sum() :]
        assert error(torch.cat(outputs, 1)[row, steps[row].bool()], wanted) <= 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_the_unpadded_sequences(name):
    layer, x = make(name, {"conv": 4, "output_gate": True, "bias": False}), randn(B, T, 24, seed=1).requires_grad_()
    weight = randn(B, T, 24, seed=2)
    parameters = [x, *layer.parameters()]
    padded = torch.autograd.grad((layer(x, attention_mask=MASK)[0] * weight).sum(), parameters)
    alone = sum(
        (layer(x[row : row + 1, keep])[0] * weight[row : row + 1, keep]).sum() for row, keep in enumerate(MASK.bool())
    )
    for got, want in zip(padded, torch.autograd.grad(alone, parameters), strict=True):
        assert error(got, want) <= 1e-11
    assert padded[0][MASK == 0].eq(0).all()


@pytest.mark.parametrize("name", NAMES)
def test_masks_of_any_type_and_masks_without_padding(name):
    layer, x = make(name, {"conv": 4}), randn(B, T, 24, seed=1)
    wanted, _ = layer(x, attention_mask=MASK)
    for mask in (MASK.bool(), MASK.float(), MASK.to(torch.uint8)):
        assert torch.equal(layer(x, attention_mask=mask)[0], wanted)
    assert torch.equal(layer(x, attention_mask=torch.ones(B, T))[0], layer(x)[0])
    nothing, state = layer(x, attention_mask=torch.zeros_like(MASK))
    assert nothing.eq(0).all()
    assert state.memory.tensors()["t"].eq(0).all()


@pytest.mark.parametrize("name", ["vla", "softmax"])
def test_a_layer_with_a_mask_can_be_compiled(name):
    """Not in one graph: how many tokens are read is known only when the mask is."""
    torch._dynamo.reset()
    layer, x = make(name, {"conv": 4}, torch.float32), randn(B, T, 24, seed=1, dtype=torch.float32)
    compiled = torch.compile(layer, backend="eager")
    for mask in (MASK, MASK.flip(1)):
        assert error(compiled(x, attention_mask=mask)[0], layer(x, attention_mask=mask)[0]) <= 1e-5
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ((1.0 - MASK) * -1e9, r"got -1000000000.0; is it an additive mask\? Then attention_mask == 0 says the same"),
        (torch.zeros(B, T), "got a mask of floats that are all 0; is it an additive mask"),
        (MASK + 1, "1 for tokens and 0 for padding, got 2"),
        (MASK[None], rf"attention_mask must have shape \[B, T\], .* got \[1, {B}, {T}\]"),
        (MASK[:, 1:], rf"attention_mask must have shape \[{B}, {T}\], got \[{B}, {T - 1}\]"),
        (MASK.tolist(), "got list"),
    ],
)
def test_what_is_no_mask_is_refused(mask, message):
    layer, x = make("vla", {}), randn(B, T, 24, seed=1)
    with pytest.raises(ValueError, match=message):
        layer(x, attention_mask=mask)


def test_a_mask_beside_packed_sequences_or_a_wrong_input_is_refused():
    layer, x = make("vla", {}), randn(1, T, 24, seed=1)
    with pytest.raises(ValueError, match="cu_seqlens or attention_mask, not both"):
        layer(x, cu_seqlens=torch.tensor([0, 5, T]), attention_mask=MASK[:1])
    with pytest.raises(ValueError, match=rf"x must have shape \[B, T, d_model = 24\], got \[{T}, 24\]"):
        layer(x[0], attention_mask=MASK[:1])
