"""The models: decoding equals the full forward, whatever the mechanism, padding or packing; outputs, losses, errors."""

import pytest
import torch

from tests.models.cases import HYBRID, KINDS, VOCABULARY, config, decode, model, padded, tokens
from tests.ops.cases import error
from varla.models import VarlaCache, VarlaForCausalLM, VarlaModel

PRECISIONS = [(torch.float32, 1e-4), (torch.float64, 1e-10)]
LENGTHS = [30, 1, 17]
OPTIONS = [{}, {"output_gate": True, "output_norm": "layer", "head_dim": 6, "short_conv": None}]


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_prefill_and_decode_equal_the_full_forward(kind, dtype, tolerance):
    for options in OPTIONS:
        net, ids = model(kind, dtype, **options), tokens(2, 45)
        wanted = net(ids).logits
        assert wanted.std() > 0.1
        first = net(ids[:, :25])
        rest = decode(net, ids[:, 25:], first.past_key_values)
        assert error(torch.cat((first.logits, rest), 1), wanted) <= tolerance
        assert first.past_key_values.get_seq_length() == 45
        assert error(decode(net, ids, VarlaCache(net.config)), wanted) <= tolerance


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_padding_is_not_read(kind, side, dtype, tolerance):
    net = model(kind, dtype)
    ids, mask = padded(LENGTHS, side)
    found = net(ids, attention_mask=mask)
    more = tokens(3, 6, seed=2)
    rest = decode(net, more, found.past_key_values)
    assert found.logits.isfinite().all()
    for i, keep in enumerate(mask.bool()):
        at_padding = found.logits[i][~keep]
        if side == "left":
            assert not at_padding.any()
        else:  # the same inputs to the last product, but its rounding may depend on the row
            assert error(at_padding, found.logits[i][keep][-1:].expand_as(at_padding)) <= tolerance
        whole = net(torch.cat((ids[i][keep], more[i]))[None]).logits[0]
        assert error(torch.cat((found.logits[i][keep], rest[i])), whole) <= tolerance


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_padding_after_a_cache_and_holes(kind):
    net = model(kind, torch.float64)
    ids, more = tokens(3, 8), tokens(3, 5, seed=2)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 1, 0]])
    cache = net(ids).past_key_values
    for given in (mask, torch.cat((torch.ones(3, 8, dtype=torch.int64), mask), 1)):
        copy = cache.clone()
        found = net(more, attention_mask=given, past_key_values=copy).logits
        last = net(more[:, :1], past_key_values=copy).logits[:, 0]
        for i, keep in enumerate(mask.bool()):
            whole = net(torch.cat((ids[i], more[i][keep], more[i, :1]))[None]).logits[0]
            assert error(torch.cat((found[i][keep], last[i : i + 1])), whole[8:]) <= 1e-10


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_a_call_with_nothing_but_padding_changes_nothing(kind):
    net, ids = model(kind, torch.float64), tokens(2, 8)
    first = net(ids)
    cache = first.past_key_values
    padding = net(ids[:, :3], attention_mask=torch.zeros(2, 3, dtype=torch.int64), past_key_values=cache).logits
    assert error(padding, first.logits[:, -1:].expand(-1, 3, -1)) <= 1e-10
    following = net(ids[:, :1], past_key_values=cache).logits
    assert error(following, net(torch.cat((ids, ids[:, :1]), 1)).logits[:, -1:]) <= 1e-10
    assert net(ids, attention_mask=torch.zeros(2, 8, dtype=torch.int64)).logits.eq(0).all()


@pytest.mark.parametrize(("dtype", "tolerance"), PRECISIONS)
@pytest.mark.parametrize("how", ["cu_seqlens", "position_ids"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_packed_sequences_are_read_as_if_alone_and_gone_on_from(kind, how, dtype, tolerance):
    net, ids, more = model(kind, dtype), tokens(1, sum(LENGTHS)), tokens(3, 4, seed=2)
    packing = {
        "cu_seqlens": torch.tensor([0, *LENGTHS]).cumsum(0),
        "position_ids": torch.cat([torch.arange(n) for n in LENGTHS])[None],
    }
    found = net(ids, **{how: packing[how]})
    rest = decode(net, more, found.past_key_values.clone())
    again = net(
        more[:, :2].reshape(1, 6), cu_seqlens=torch.tensor([0, 2, 4, 6]), past_key_values=found.past_key_values
    ).logits.view(3, 2, -1)
    for i, part in enumerate(ids[0].split(LENGTHS)):
        whole = net(torch.cat((part, more[i]))[None]).logits[0]
        here = found.logits[0].split(LENGTHS)[i]
        assert error(torch.cat((here, rest[i])), whole) <= tolerance
        assert error(again[i], whole[len(part) :][:2]) <= tolerance


@torch.no_grad()
def test_rows_may_be_packed_and_padded_at_once():
    net, ids = model("hybrid", torch.float64), tokens(2, 9)
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 1, 0, 1, 2, 3]])
    mask = torch.tensor([[1] * 9, [0] * 3 + [1] * 6])
    logits = net(ids, attention_mask=mask, position_ids=positions).logits
    for row, start, end in ((0, 0, 3), (0, 3, 9), (1, 3, 5), (1, 5, 9)):
        assert error(logits[row, start:end], net(ids[row : row + 1, start:end]).logits[0]) <= 1e-10


@torch.no_grad()
def test_position_ids_that_only_count_change_nothing():
    net, ids = model("hybrid"), tokens(2, 9)
    wanted = net(ids)
    assert torch.equal(net(ids, position_ids=torch.arange(9)[None]).logits, wanted.logits)
    assert torch.equal(net(ids, attention_mask=torch.ones(2, 9)).logits, wanted.logits)
    zero = torch.zeros(2, 1, dtype=torch.int64)  # with a cache, a 0 begins nothing
    following = net(ids[:, :1], past_key_values=wanted.past_key_values.clone()).logits
    assert torch.equal(net(ids[:, :1], past_key_values=wanted.past_key_values, position_ids=zero).logits, following)


def test_the_loss_is_the_mean_over_what_is_predicted():
    net, ids = model("vla"), tokens(2, 12)
    labels = ids.clone()
    labels[0, :5] = -100
    found = net(ids, labels=labels)
    predicted = torch.log_softmax(found.logits[:, :-1], -1).gather(2, ids[:, 1:, None])[..., 0]
    counted = labels[:, 1:] != -100
    assert error(found.loss, -predicted[counted].mean()) <= 1e-6
    summed = net(ids, labels=labels, num_items_in_batch=torch.tensor(7)).loss
    assert error(summed, -predicted[counted].sum() / 7) <= 1e-6
    assert error(net(ids, labels=labels, num_items_in_batch=7).loss, summed) <= 1e-6


@pytest.mark.parametrize("kind", ["vla", "hybrid", "gated-vla"])
def test_losses_and_gradients_do_not_leak_across_packed_sequences_or_padding(kind):
    net, weight = (found := model(kind, torch.float64)), found.model.layers[0].mixer.k.weight
    long, short, filling = tokens(1, 12), tokens(1, 7, seed=2), torch.full((1, 5), 3)
    wanted = sum(net(ids, labels=ids, num_items_in_batch=1).loss for ids in (long, short))
    (gradient,) = torch.autograd.grad(wanted, [weight])
    packed = torch.cat((long, short), 1)
    left = torch.cat((long, torch.cat((filling, short), 1)))
    right = torch.cat((long, torch.cat((short, filling), 1)))
    for ids, given in (
        (packed, {"cu_seqlens": torch.tensor([0, 12, 19])}),
        (packed, {"position_ids": torch.cat((torch.arange(12), torch.arange(7)))[None]}),
        (left, {"attention_mask": torch.tensor([[1] * 12, [0] * 5 + [1] * 7])}),
        (right, {"attention_mask": torch.tensor([[1] * 12, [1] * 7 + [0] * 5])}),
    ):
        predicted = torch.ones_like(ids)
        predicted[:, 12 if ids is packed else slice(0, 0)] = 0  # the first token of the second sequence
        labels = ids.masked_fill(given.get("attention_mask", predicted) * predicted == 0, -100)
        loss = net(ids, labels=labels, num_items_in_batch=1, **given).loss
        assert error(loss, wanted) <= 1e-6  # transformers finds it in float32
        assert error(torch.autograd.grad(loss, [weight])[0], gradient) <= 1e-5


@torch.no_grad()
def test_outputs():
    net, ids = model("hybrid"), tokens(2, 9)
    full = net(ids, output_hidden_states=True)
    assert len(full.hidden_states) == 4
    assert all(each.shape == (2, 9, 24) for each in full.hidden_states)
    assert torch.equal(full.hidden_states[0], net.get_input_embeddings()(ids))
    base = net.model(ids)
    assert torch.equal(full.hidden_states[-1], base.last_hidden_state)
    assert base.hidden_states is None
    assert torch.equal(net(ids, logits_to_keep=2).logits, full.logits[:, -2:])
    assert torch.equal(net(ids, logits_to_keep=torch.tensor([0, 8])).logits, full.logits[:, [0, 8]])
    assert torch.equal(net(inputs_embeds=net.get_input_embeddings()(ids)).logits, full.logits)
    logits, cache = net(ids, return_dict=False)
    assert torch.equal(logits, full.logits)
    assert cache.get_seq_length() == 9
    assert torch.equal(net.model(ids, return_dict=False)[0], base.last_hidden_state)
    mask = torch.tensor([[1] * 9, [0] * 4 + [1] * 5])
    hidden = net(ids, attention_mask=mask, output_hidden_states=True).hidden_states
    apart = net(ids[1:, 4:], output_hidden_states=True).hidden_states
    assert all(error(got[1:, 4:], wanted) <= 1e-5 for got, wanted in zip(hidden, apart, strict=True))


def test_when_there_is_a_cache():
    net, ids = model(), tokens(2, 9)
    assert net(ids).past_key_values is not None
    assert net(ids, use_cache=False).past_key_values is None
    assert model(use_cache=False)(ids).past_key_values is None
    net.train()
    assert net(ids).past_key_values is None
    cache = net(ids, use_cache=True).past_key_values
    net(ids, past_key_values=cache, use_cache=False)
    assert cache.get_seq_length() == 9
    assert net(ids, past_key_values=cache).past_key_values is cache
    assert cache.get_seq_length() == 18


def test_head_tied_or_not():
    tied, untied = model(), model(tie_word_embeddings=False)
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_bfloat16_weights_keep_states_in_float32(kind):
    net, ids = model(kind, torch.bfloat16), tokens(2, 40)
    found = net(ids[:, :30])
    rest = decode(net, ids[:, 30:], found.past_key_values)
    assert found.logits.dtype == torch.bfloat16
    memory = found.past_key_values.state.layers[0].memory.tensors()
    assert memory["t"].dtype == torch.int64
    if "S" in memory:
        assert memory["S"].dtype == torch.float32
    assert error(rest, net(ids).logits[:, 30:]) <= 0.1


def test_state_size_is_what_a_cache_takes():
    for kind in KINDS:
        net = model(kind)
        assert net(tokens(1, 33)).past_key_values.nbytes == net.model.state_size(33)
    assert model("vla").model.state_size(10) == model("vla").model.state_size(10**6)


def test_resizing_the_vocabulary():
    net = model()
    net.resize_token_embeddings(VOCABULARY + 6)
    assert net.lm_head.weight is net.model.embed_tokens.weight
    ids = torch.full((1, 4), VOCABULARY + 5)
    assert net(ids, labels=ids).logits.shape == (1, 4, VOCABULARY + 6)
    with pytest.raises(ValueError, match="from 0 to 55"):
        net(ids + 1)


def test_wrong_inputs_are_refused():
    net, ids = model("hybrid"), tokens(2, 9)
    for arguments, message in (
        (
            {"input_ids": ids + 45},
            r"input_ids must be from 0 to 49 \(vocab_size = 50\), got \d\d; was the text encoded",
        ),
        ({"input_ids": ids - 60}, "input_ids must be from 0 to 49"),
        ({"input_ids": ids[:, :0]}, r"shape \[B, T >= 1\], got torch.int64 \[2, 0\]"),
        ({}, "give either input_ids or inputs_embeds"),
        ({"input_ids": ids, "inputs_embeds": torch.zeros(2, 9, 24)}, "give either input_ids or inputs_embeds"),
        ({"inputs_embeds": torch.zeros(2, 9, 23)}, r"hidden_size = 24\], got \[2, 9, 23\]"),
        ({"input_ids": ids, "attention_mask": (ids > 9) * -1e9}, "for tokens and 0 for padding, got -1000000000.0"),
        ({"input_ids": ids, "attention_mask": ids}, "attention_mask must be 1 for tokens and 0 for padding, got"),
        ({"input_ids": ids, "labels": ids, "logits_to_keep": 1}, "labels or logits_to_keep, not both"),
        ({"input_ids": ids, "labels": ids[:, :5]}, r"labels must have shape \[2, 9\], got \[2, 5\]"),
        ({"input_ids": ids, "labels": ids.float()}, "labels must be integers, got torch.float32"),
        (
            {"input_ids": ids, "labels": ids.masked_fill(ids == ids[1, 3], 50)},
            r"labels must be from 0 to 49 \(vocab_size = 50\) or -100 \(not predicted\), got 50; was the text encoded",
        ),
        ({"input_ids": ids, "labels": ids.masked_fill(ids == ids[1, 3], -1)}, "labels must be from 0 to 49 .* got -1;"),
    ):
        with pytest.raises(ValueError, match=message):
            net(**arguments)
    with pytest.raises(TypeError, match="unexpected keyword argument 'label'"):
        net(ids, label=ids)
    changed = config()
    changed.num_attention_heads, changed.head_dim = 5, None
    with pytest.raises(ValueError, match="num_attention_heads must divide"):
        VarlaForCausalLM(changed)


def test_labels_of_any_integer_type_and_anything_where_nothing_is_predicted():
    net, ids = model("hybrid"), tokens(2, 9)
    wanted = net(ids, labels=ids).loss
    for kind in (torch.int32, torch.uint8):  # -100 does not fit into the latter
        assert torch.equal(net(ids, labels=ids.to(kind)).loss, wanted)
    first = ids.clone()
    first[:, 0] = 10**6
    assert torch.equal(net(ids, labels=first).loss, wanted)
    mask = torch.tensor([[1] * 9, [0] * 4 + [1] * 5])
    labels = ids.masked_fill(mask == 0, -1)
    assert torch.equal(net(ids, mask, labels=labels).loss, net(ids, mask, labels=ids).loss)


def test_every_layer_has_its_mechanism():
    net = VarlaModel(config(mechanisms=HYBRID, mechanism_options={"vla": {"lambda0": 0.5}, "softmax": {"conv": None}}))
    assert [block.mixer.name for block in net.layers] == HYBRID
    assert net.layers[0].mixer.options["lambda0"] == 0.5
    assert [block.mixer.conv is None for block in net.layers] == [False, True, False]
    assert net.layers[1].mixer.rotary == 10000.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_the_output_norm_is_one_however_small_the_outputs_have_become(dtype):
    """VLA's outputs are divided by a sum over all tokens: an epsilon of the usual size would take over."""
    net, seen = model("vla", dtype, initializer_range=0.02), []
    net.model.layers[0].mixer.norm.register_forward_hook(
        lambda module, inputs, output: seen.append((inputs[0], output))
    )
    net(tokens(1, 5000))
    before, after = (x[0, -1].float().square().mean() for x in seen[0])
    assert before < 1e-9
    assert abs(float(after) - 1) < 0.02
