"""`generate`: with the cache as without it, padded, continued, in pieces; what cannot be done says so."""

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, TextIteratorStreamer, set_seed

from tests.models.cases import KINDS, SIDES, model, padded, tokens
from tests.ops.cases import error
from varla.models import VarlaCache

WAYS = {
    "greedy": {"do_sample": False},
    "beam": {"num_beams": 3, "do_sample": False},
    "sampling": {"do_sample": True, "temperature": 0.7, "top_k": 20},
    "several": {"do_sample": True, "num_return_sequences": 2},
}


def generate(net, ids, **options):
    """Without a pad token, transformers does not take tokens of the prompt for padding."""
    set_seed(3)
    return net.generate(ids, **{"max_new_tokens": 10, **options})


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_with_the_cache_as_without(kind, way):
    net, ids = model(kind), tokens(2, 9)
    found = generate(net, ids, **WAYS[way])
    assert found.shape[1] == 19
    assert torch.equal(found, generate(net, ids, use_cache=False, **WAYS[way]))


@pytest.mark.parametrize("way", ["greedy", "beam"])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_anywhere_equals_the_unpadded_prompt(kind, way):
    net, options = model(kind), {"max_new_tokens": 5, **WAYS[way]}
    for side in SIDES:
        ids, mask = padded([9, 1, 5], side)
        found = generate(net, ids, attention_mask=mask, **options)
        assert torch.equal(found[:, :9], ids)
        assert torch.equal(found, generate(net, ids, attention_mask=mask, use_cache=False, **options))
        for row, keep, got in zip(ids, mask.bool(), found, strict=True):
            apart = generate(net, row[keep][None], **options)
            assert torch.equal(apart[0, int(keep.sum()) :], got[9:]), side


@pytest.mark.parametrize("way", ["sampling", "several"])
def test_samples_do_not_depend_on_the_side_of_the_padding(way):
    net, rows = model("hybrid"), tokens(2, 9)
    left, right = rows.clone(), rows.clone()
    left[1, 4:], right[1, :5] = rows[1, :5], rows[1, :5]
    mask = torch.tensor([[1] * 9, [0] * 4 + [1] * 5])
    found = [
        generate(net, ids, attention_mask=each, **WAYS[way])[:, 9:]
        for ids, each in ((left, mask), (right, torch.tensor([[1] * 9, [1] * 5 + [0] * 4])))
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("side", SIDES)
def test_a_mask_inferred_from_the_pad_token_is_as_a_given_one(side):
    net = model("hybrid")
    ids, mask = padded([9, 1, 5], side)
    ids = ids.masked_fill(ids == 0, 1).masked_fill(mask == 0, 0)
    wanted = generate(net, ids, attention_mask=mask, do_sample=False)
    assert torch.equal(generate(net, ids, do_sample=False, pad_token_id=0, eos_token_id=None), wanted)
    ids[1] = 0
    with pytest.raises(ValueError, match="row 1 of the prompt is all padding: it must hold at least one token"):
        generate(net, ids, do_sample=False, pad_token_id=0)


@pytest.mark.parametrize("kind", ["vla", "hybrid"])
def test_rows_end_by_themselves(kind):
    net, ids = model(kind), tokens(3, 6)
    free = generate(net, ids, do_sample=False)
    end = int(free[0, 8])
    found = generate(net, ids, do_sample=False, eos_token_id=end, pad_token_id=1)
    for row, whole in zip(found, free, strict=True):
        new = whole[6:].tolist()
        length = 6 + (new.index(end) + 1 if end in new else 10)
        assert torch.equal(row[:length], whole[:length])
        assert row[length:].eq(1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_going_on_from_a_cache(kind):
    net = model(kind)
    ids, mask = padded([9, 4], "left")
    cache = VarlaCache(net.config)
    first = generate(net, ids, attention_mask=mask, past_key_values=cache, do_sample=False)
    assert cache.get_seq_length() == 18  # the last token was chosen, and not read
    turn = torch.cat((first, tokens(2, 3, seed=5)), 1)
    mask = torch.cat((mask, torch.ones(2, 13, dtype=torch.int64)), 1)
    wanted = generate(net, turn, attention_mask=mask, do_sample=False)
    again = generate(net, turn, attention_mask=mask, past_key_values=cache.clone(), do_sample=False)
    assert torch.equal(again, wanted)
    new = generate(net, turn[:, 18:], attention_mask=mask, past_key_values=cache, do_sample=False)
    assert torch.equal(new[:, 4:], wanted[:, 22:])


def test_beams_from_a_cache_that_was_widened():
    net, ids = model("hybrid"), tokens(2, 9)
    cache = net(ids[:, :6]).past_key_values.detach()
    cache.batch_repeat_interleave(3)
    found = generate(net, ids, past_key_values=cache, **WAYS["beam"])
    assert torch.equal(found, generate(net, ids, **WAYS["beam"]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", SIDES)
def test_a_turn_that_is_padded_is_gone_on_from(kind, side):
    """One row says nothing in the second turn: what follows is predicted from its first."""
    net, first = model(kind), tokens(3, 8)
    more, mask = padded([5, 1, 3], side, seed=2)
    mask[1] = 0
    cache = net(first).past_key_values
    whole = torch.cat((torch.ones(3, 8, dtype=torch.int64), mask), 1)
    found = generate(net, more, attention_mask=whole, past_key_values=cache, do_sample=False)
    for i, keep in enumerate(mask.bool()):
        wanted = generate(net, torch.cat((first[i], more[i][keep]))[None], do_sample=False)
        assert torch.equal(found[i, 5:], wanted[0, -10:])


@pytest.mark.parametrize("kind", ["vla", "hybrid"])
@pytest.mark.parametrize(("piece", "side"), [(1, "left"), (4, "left"), (3, "right"), (2, "within")])
def test_a_prompt_read_in_pieces(kind, piece, side):
    net = model(kind)
    ids, mask = padded([9, 4], side)
    wanted = generate(net, ids, attention_mask=mask, do_sample=False)
    assert torch.equal(generate(net, ids, attention_mask=mask, do_sample=False, prefill_chunk_size=piece), wanted)


@pytest.mark.parametrize("way", ["greedy", "beam"])
@pytest.mark.parametrize("side", SIDES)
def test_from_embeddings(side, way):
    net, embed = (found := model("hybrid")), found.get_input_embeddings()
    ids, mask = padded([9, 4], side)
    wanted = generate(net, ids, attention_mask=mask, **WAYS[way])
    assert torch.equal(generate(net, None, inputs_embeds=embed(ids), attention_mask=mask, **WAYS[way]), wanted[:, 9:])
    both = generate(net, ids, inputs_embeds=embed(ids), attention_mask=mask, **WAYS[way])
    assert torch.equal(both, wanted)


def test_going_on_from_embeddings_and_a_cache():
    net, embed = (found := model("hybrid")), found.get_input_embeddings()
    start, options = embed(tokens(2, 9)), {"do_sample": False, "return_dict_in_generate": True}
    whole = generate(net, None, inputs_embeds=start, max_new_tokens=4, **options)
    part = generate(net, None, inputs_embeds=start, max_new_tokens=3, **options)
    longer = torch.cat((start, embed(part.sequences)), 1)
    rest = generate(net, None, inputs_embeds=longer, past_key_values=part.past_key_values, max_new_tokens=1, **options)
    assert torch.equal(torch.cat((part.sequences, rest.sequences), 1), whole.sequences)
    for got, wanted in zip(rest.past_key_values.layers, whole.past_key_values.layers, strict=True):
        assert type(got) is type(wanted)
        pairs = (
            [(got.keys, wanted.keys), (got.values, wanted.values)]
            if hasattr(got, "keys")
            else [
                *zip(got.recurrent_states.values(), wanted.recurrent_states.values(), strict=True),
                (got.conv_states[0], wanted.conv_states[0]),
            ]
        )
        for mine, theirs in pairs:
            assert error(mine, theirs) <= 1e-5


def test_a_step_after_the_prompt_is_given_no_mask_to_look_at(monkeypatch):
    net, seen = model(), []
    ids, mask = padded([9, 4], "left")
    forward = net.model.forward
    monkeypatch.setattr(net.model, "forward", lambda **given: seen.append(given["attention_mask"]) or forward(**given))
    generate(net, ids, attention_mask=mask, do_sample=False)
    assert torch.equal(seen[0], mask)
    assert seen[1:] == [None] * 9


def test_the_length_of_training_is_no_bound():
    net = model(max_position_embeddings=16)
    for T in (10, 16, 40):
        wanted = model().generate(tokens(1, T), do_sample=False, max_new_tokens=20)
        assert torch.equal(net.generate(tokens(1, T), do_sample=False), wanted)
        assert torch.equal(net.generate(tokens(1, T), do_sample=False, max_new_tokens=5), wanted[:, : T + 5])
    assert net.generate(tokens(1, 4), max_length=6).shape == (1, 6)


def test_memory_is_constant():
    net, cache = model("vla"), None
    sizes = set()
    for _ in range(3):
        cache = cache or VarlaCache(net.config)
        generate(net, tokens(1, cache.get_seq_length() + 8), past_key_values=cache, do_sample=False)
        sizes.add(cache.nbytes)
    assert len(sizes) == 1


def test_streaming():
    class Numbers:
        def decode(self, ids, **_):
            return "".join(f"{int(i)} " for i in ids)

    net, ids = model(), tokens(1, 4)
    streamer = TextIteratorStreamer(Numbers(), skip_prompt=True)
    found = generate(net, ids, streamer=streamer, do_sample=False)
    assert "".join(streamer) == Numbers().decode(found[0, 4:])


def test_what_cannot_be_done_says_so():
    net, ids = model(), tokens(2, 9)
    other = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=8,
            num_key_value_heads=3, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    with pytest.raises(ValueError, match="not supported with stateful models"):
        generate(net, ids[:1], assistant_model=other)
    with pytest.raises(ValueError, match="not supported with stateful models"):
        generate(net, ids[:1], prompt_lookup_num_tokens=2)
    with pytest.raises(ValueError, match="cannot be shortened"):
        generate(other, ids[:1], assistant_model=net)
    with pytest.raises(ValueError, match="cache_implementation must be None: a Varla model has its own cache"):
        generate(net, ids, cache_implementation="static")
    with pytest.raises(TypeError, match="past_key_values must be a VarlaCache"):
        generate(net, ids, past_key_values=DynamicCache())
    with pytest.raises(ValueError, match="the prompt is empty"):
        generate(net, ids[:, :0])
    with pytest.raises(ValueError, match="input_ids must be from 0 to 49"):
        generate(net, ids + 50)
    cache = net(ids).past_key_values
    for short in (ids, ids[:, :4]):
        with pytest.raises(
            ValueError, match="has seen 9 tokens a row: input_ids must hold these and at least one more"
        ):
            generate(net, short, past_key_values=cache)
    with pytest.raises(ValueError, match="past_key_values holds 2 rows, the call has 1"):
        generate(net, tokens(1, 12), past_key_values=cache)
