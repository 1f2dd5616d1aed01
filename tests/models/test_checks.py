"""What is no batch of tokens is refused by both models and by generate, with the argument's name and what came."""

import numpy as np
import pytest
import torch
from transformers import BatchEncoding

from tests.models.cases import model, tokens
from varla.models import VarlaCache

IDS = tokens(2, 9)
EMBEDS = torch.zeros(2, 9, 24)
NO_IDS = [
    (IDS.tolist(), TypeError, r"input_ids must be a tensor of integers \[B, T\], got list"),
    (IDS.numpy(), TypeError, r"input_ids must be a tensor of integers \[B, T\], got ndarray"),
    ("text", TypeError, "input_ids must be a tensor .* got str"),
    (BatchEncoding({"input_ids": IDS}), TypeError, r"got BatchEncoding; give what it holds by name: model\(\*\*inputs"),
    (IDS[0], ValueError, r"shape \[B, T >= 1\], got torch.int64 \[9\]; input_ids\[None\] is a batch of one"),
    (IDS[None], ValueError, r"shape \[B, T >= 1\], got torch.int64 \[1, 2, 9\]"),
    (IDS.float(), ValueError, r"integers \(int32 or int64\) of shape \[B, T >= 1\], got torch.float32 \[2, 9\]$"),
    (IDS > 3, ValueError, "input_ids must be integers .* got torch.bool"),
    (IDS.to(torch.uint8), ValueError, "input_ids must be integers .* got torch.uint8"),
]
NO_EMBEDS = [
    (EMBEDS.tolist(), TypeError, r"inputs_embeds must be a tensor of floats \[B, T, hidden_size = 24\], got list"),
    (EMBEDS.numpy(), TypeError, "inputs_embeds must be a tensor .* got ndarray"),
    (EMBEDS[..., 1:], ValueError, r"shape \[B, T >= 1, hidden_size = 24\], got \[2, 9, 23\]"),
    (EMBEDS[0], ValueError, r"shape \[B, T >= 1, hidden_size = 24\], got \[9, 24\]"),
    (EMBEDS.long(), ValueError, "inputs_embeds must be torch.float32, as the weights are, got torch.int64"),
    (EMBEDS.double(), ValueError, "inputs_embeds must be torch.float32, as the weights are, got torch.float64"),
]


@pytest.mark.parametrize(("value", "kind", "message"), NO_IDS)
def test_what_are_no_token_ids_is_refused(value, kind, message):
    net = model()
    for call in (net, net.model, net.generate):
        with pytest.raises(kind, match=message):
            call(value)
        with pytest.raises(kind, match=message):
            call(input_ids=value)


@pytest.mark.parametrize(("value", "kind", "message"), NO_EMBEDS)
def test_what_are_no_embeddings_is_refused(value, kind, message):
    net = model()
    for call in (net, net.model, net.generate):
        with pytest.raises(kind, match=message):
            call(inputs_embeds=value)


def test_narrower_embeddings_and_any_under_autocast_are_taken():
    assert model()(inputs_embeds=EMBEDS.bfloat16()).logits.shape == (2, 9, 50)
    net = model(dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"must be torch\.bfloat16, as the weights are, got torch\.float32"):
        net(inputs_embeds=EMBEDS)
    with torch.autocast("cpu", torch.bfloat16):
        assert net(inputs_embeds=EMBEDS).logits.shape == (2, 9, 50)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"labels": IDS.tolist()}, TypeError, r"labels must be a tensor of integers \[2, 9\], got list"),
        ({"labels": IDS.numpy()}, TypeError, "labels must be a tensor .* got ndarray"),
        ({"labels": IDS.to(torch.complex64)}, ValueError, "labels must be integers, got torch.complex64"),
        (
            {"position_ids": [list(range(9))]},
            TypeError,
            r"position_ids must be a tensor .* \[2, 9\], got list",
        ),
        ({"attention_mask": np.ones((2, 9))}, ValueError, "attention_mask must have shape .* got ndarray"),
        ({"logits_to_keep": -1}, ValueError, "logits_to_keep must be at least 0"),
        ({"logits_to_keep": [1, 2]}, TypeError, "logits_to_keep must be an integer"),
        ({"logits_to_keep": torch.tensor([0.5])}, ValueError, r"logits_to_keep must be .* got torch.float32 \[1\]"),
        ({"logits_to_keep": torch.tensor([[1]])}, ValueError, r"shape \[N\], .* got torch.int64 \[1, 1\]"),
        ({"logits_to_keep": torch.tensor([0, 99])}, ValueError, "positions from 0 to 8, or from -9 to -1 .* got 99"),
        ({"logits_to_keep": torch.tensor([-10, 3])}, ValueError, "positions from 0 to 8, or from -9 to -1 .* got -10"),
        (
            {"logits_to_keep": torch.ones(4, dtype=torch.bool)},
            ValueError,
            r"booleans of shape \[9\], got torch.bool \[4\]",
        ),
        ({"logits_to_keep": None}, TypeError, "logits_to_keep must be an integer"),
    ],
)
def test_what_goes_beside_them_is_looked_at(arguments, kind, message):
    net = model()
    cache = VarlaCache(net.config)
    with pytest.raises(kind, match=message):
        net(IDS, **arguments)
    if "logits_to_keep" in arguments:  # before the cache has read anything
        with pytest.raises(kind, match=message):
            net(IDS, **arguments, past_key_values=cache)
        assert cache.get_seq_length() == 0


def test_positions_to_keep():
    net = model()
    whole = net(IDS).logits
    for kept in (torch.tensor([-1, 2]), torch.arange(9) % 2 == 0, torch.tensor([], dtype=torch.int64)):
        assert torch.equal(net(IDS, logits_to_keep=kept).logits, whole[:, kept])
    assert torch.equal(net(IDS, logits_to_keep=99).logits, whole)  # at most this many


@pytest.mark.parametrize(
    ("prompt", "mask", "kind", "message"),
    [
        (IDS, [[1] * 9] * 2, TypeError, "attention_mask must be a tensor of shape .* got list"),
        (IDS, torch.ones(9), ValueError, r"attention_mask must have shape \[2, 9\], as the prompt, got \[9\]"),
        (
            IDS,
            torch.ones(2, 4),
            ValueError,
            r"must have shape \[2, 9\], as the prompt, got \[2, 4\]",
        ),
        (IDS, torch.ones(1, 9), ValueError, r"got \[1, 9\]"),
        (IDS[:0], None, ValueError, r"the prompt must have at least one row, got shape \[0, 9\]"),
        (IDS, torch.tensor([[1] * 9, [0] * 9]), ValueError, "row 1 of the prompt is all padding"),
        (
            IDS,
            torch.tensor([[0.0] * 9, [float("-inf")] * 4 + [0.0] * 5]),
            ValueError,
            r"0 for padding, got -inf; is it an additive mask\? Then attention_mask == 0 says the same",
        ),
        (IDS, torch.full((2, 9), float("nan")), ValueError, "1 for tokens and 0 for padding, got nan"),
    ],
)
def test_a_prompt_and_its_mask_fit_each_other(prompt, mask, kind, message):
    with pytest.raises(kind, match=message):
        model().generate(prompt, attention_mask=mask)
