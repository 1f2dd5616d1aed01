"""A session gives what the model gives, in any pieces; forks go their own ways; nothing wrong is read."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import ByT5Tokenizer

import varla
from tests.session.cases import tiny
from varla.layers import MECHANISMS
from varla.session import session as module

MODELS = [*MECHANISMS, ["vla", "softmax"]]
TEXT = "Ein kleiner Prüfstein: ∑ kᵢ vᵢ, 🙂 and so on."


def ids(length, seed=0):
    return torch.randint(3, 259, (length,), generator=torch.Generator().manual_seed(seed))


def tokenizer():
    return ByT5Tokenizer(extra_ids=0)


def forward(model, tokens):
    with torch.no_grad():
        return model(torch.as_tensor(tokens)[None], use_cache=False).logits[0]


@pytest.mark.parametrize("mechanisms", MODELS, ids=str)
def test_logits_are_those_of_the_full_forward(mechanisms, monkeypatch):
    monkeypatch.setattr(module, "PIECE", 16)
    model, tokens = tiny(mechanisms), ids(61)
    session = varla.Session(model)
    wanted = forward(model, tokens)
    for begin, end in itertools.pairwise((0, 1, 2, 40, 61)):
        session.feed(tokens[begin:end])
        assert session.position == end
        torch.testing.assert_close(session.logits, wanted[end - 1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("mechanisms", MODELS, ids=str)
def test_greedy_generation_is_the_models_own_and_that_without_a_cache(mechanisms):
    model, prompt = tiny(mechanisms), ids(20)
    session = varla.Session(model).feed(prompt)
    found = list(session.generate(12, temperature=0, stop=()))
    options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert found == model.generate(prompt[None], **options)[0, 20:].tolist()
    again = prompt.tolist()
    for _ in range(12):
        again.append(int(forward(model, again)[-1].argmax()))
    assert found == again[20:]
    assert session.position == 32
    torch.testing.assert_close(session.logits, forward(model, again)[-1], rtol=0, atol=1e-4)


@pytest.mark.parametrize("mechanisms", MODELS, ids=str)
def test_samples_are_drawn_from_the_full_forwards_distribution(mechanisms):
    model, prompt = tiny(mechanisms), ids(10)
    session = varla.Session(model).feed(prompt)
    p = (forward(model, prompt)[-1].double() / 0.7).softmax(0)
    torch.testing.assert_close(session.probabilities(temperature=0.7), p, rtol=0, atol=1e-5)
    drawn = list(session.fork().generate(5, temperature=0.7, seed=3, stop=()))
    generator, tokens = torch.Generator().manual_seed(3), prompt.tolist()
    for _ in range(5):
        p = (forward(model, tokens)[-1].double() / 0.7).softmax(0)
        tokens.append(int(torch.multinomial(p, 1, generator=generator)))
    assert drawn == tokens[10:]


def test_a_seed_gives_the_same_again_and_none_pytorchs_own():
    session = varla.Session(tiny()).feed(ids(5))
    assert list(session.fork().generate(20, seed=1)) == list(session.fork().generate(20, seed=1))
    assert list(session.fork().generate(20, seed=1)) != list(session.fork().generate(20, seed=2))
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        drawn.append(list(session.fork().generate(20)))
    assert drawn[0] == drawn[1]


def test_what_came_out_was_read_and_nothing_else():
    model = tiny()
    session, other = varla.Session(model).feed(ids(7)), varla.Session(model).feed(ids(7))
    tokens = list(itertools.islice(session.generate(seed=1, stop=()), 4))  # and no further
    assert session.position == 11
    for token in tokens:
        other.feed([token])
    assert torch.equal(session.logits, other.logits)


def test_stops_after_a_stop_token():
    model = tiny()
    session = varla.Session(model).feed(ids(7))
    free = list(session.fork().generate(30, seed=1, stop=()))
    stop = free[5]
    assert list(session.fork().generate(30, seed=1, stop=stop)) == free[: free.index(stop) + 1]
    assert list(session.fork().generate(30, seed=1, stop=[258, stop])) == free[: free.index(stop) + 1]
    model.generation_config.eos_token_id = stop
    assert list(session.fork().generate(30, seed=1)) == free[: free.index(stop) + 1]
    model.generation_config.eos_token_id = None
    model.config.eos_token_id = None
    assert list(session.fork().generate(30, seed=1)) == free


def test_no_tokens_can_be_asked_for():
    session = varla.Session(tiny()).feed([3])
    assert list(session.generate(0)) == []
    assert session.position == 1


@pytest.mark.parametrize("mechanisms", MODELS, ids=str)
def test_forks_are_independent_and_share_no_memory(mechanisms):
    model = tiny(mechanisms)
    session = varla.Session(model).feed(ids(9))
    fork = session.fork()
    held = [x for each in (session, fork) for layer in each._cache.state.layers for x in layer.tensors().values()]
    assert len({x.data_ptr() for x in held}) == len(held)
    before = session.logits
    fork.feed(ids(20, seed=1))
    assert (session.position, fork.position) == (9, 29)
    assert torch.equal(session.logits, before)
    both = [varla.Session(model).feed(ids(9)).feed(ids(5, seed=2)), session.feed(ids(5, seed=2))]
    assert torch.equal(both[0].logits, both[1].logits)


def test_reset_forgets():
    session = varla.Session(tiny()).feed(ids(9))
    wanted = varla.Session(session.model).feed(ids(4, seed=1)).logits
    assert session.reset().position == 0
    assert torch.equal(session.feed(ids(4, seed=1)).logits, wanted)


def test_tokens_may_come_in_many_forms():
    model, tokens = tiny(), ids(6)
    wanted = varla.Session(model).feed(tokens).logits
    forms = (
        tokens.tolist(), tuple(tokens.tolist()), tokens.numpy(), tokens.numpy().astype(np.uint16), tokens[None],
        tokens.int(), iter(tokens.tolist()), (int(each) for each in tokens),
    )  # fmt: skip
    for form in forms:
        assert torch.equal(varla.Session(model).feed(form).logits, wanted)
    assert varla.Session(model).feed(range(3, 200)).position == 197
    assert varla.Session(model).feed([]).feed(torch.zeros(0, dtype=torch.int64)).position == 0


def test_the_state_has_one_size_but_for_softmax():
    for mechanisms in MODELS:
        session = varla.Session(tiny(mechanisms))
        sizes = [session.feed(ids(n)).nbytes for n in (1, 10, 100)]
        assert (len(set(sizes)) == 1) is ("softmax" not in mechanisms)


def test_text_goes_in_and_out():
    model = tiny()
    session = varla.Session(model, tokenizer()).feed(TEXT)
    wanted = tokenizer()(TEXT, add_special_tokens=False)["input_ids"]
    assert session.position == len(wanted) == len(TEXT.encode())
    assert torch.equal(session.logits, varla.Session(model).feed(wanted).logits)
    pieces = varla.Session(model, tokenizer()).feed_text(TEXT)  # letter by letter: one text all the same
    assert torch.equal(session.logits, pieces.logits)


class Says:
    """Stands in for the draw: these tokens, one after the other."""

    def __init__(self, monkeypatch, tokens):
        waiting = iter(tokens)
        monkeypatch.setattr(module.Sampling, "draw", lambda *_: next(waiting))


def test_split_characters_come_out_whole(monkeypatch):
    words = tokenizer()(TEXT, add_special_tokens=False)["input_ids"]
    Says(monkeypatch, words)
    session = varla.Session(tiny(), tokenizer()).feed("x")
    assert list(session.generate_text(len(words))) == list(TEXT)
    assert session.position == 1 + len(words)


def test_a_character_may_be_completed_by_the_next_call(monkeypatch, tmp_path):
    Says(monkeypatch, tokenizer()("a🙂b" * 3, add_special_tokens=False)["input_ids"])
    model = tiny()
    session = varla.Session(model, tokenizer()).feed("x")
    assert list(session.generate_text(3)) == ["a"]
    assert list(session.generate_text(3)) == ["🙂", "b"]
    assert list(session.generate_text(3)) == ["a"]
    session.save(tmp_path / "state")
    session = varla.Session.load(tmp_path / "state", model, tokenizer())
    assert list(session.fork().generate_text(3)) == ["🙂", "b"]
    assert list(session.feed("-").generate_text(2)) == ["a"]


@pytest.mark.parametrize(
    ("stop", "wanted"),
    [
        ("lo", "hello"),
        ("o w", "hello w"),
        (["ld", "zz"], "hello world"),
        (["ld", 35], "hello "),
        ((), "hello world, and"),
    ],
)
def test_stops_at_text_or_tokens(monkeypatch, stop, wanted):
    Says(monkeypatch, tokenizer()("hello world, and more", add_special_tokens=False)["input_ids"])
    session = varla.Session(tiny(), tokenizer()).feed("x")
    assert "".join(session.generate_text(16, stop=stop)) == wanted
    assert session.position == 1 + len(wanted)


def test_the_end_of_text_has_no_text(monkeypatch):
    Says(monkeypatch, [107, 108, 1, 109])
    session = varla.Session(tiny(), tokenizer()).feed("x")
    assert "".join(session.generate_text()) == "hi"
    assert session.position == 4


@pytest.mark.parametrize(
    ("tokens", "kind", "words"),
    [
        ([259], ValueError, ["from 0 to 258", "got 259", "another tokenizer"]),
        ([-1], ValueError, ["from 0 to 258", "got -1"]),
        (torch.tensor([1.0]), TypeError, ["integers", "float32"]),
        (np.array([1.0]), TypeError, ["integers", "float64"]),
        (torch.tensor([True]), TypeError, ["integers", "bool"]),
        ([1.5], TypeError, ["integers", "float32"]),
        (["a"], TypeError, ["integers"]),
        ([None], TypeError, ["integers"]),
        ([[1, 2], [3]], TypeError, ["integers"]),
        ([2**70], TypeError, ["integers"]),
        (torch.zeros(2, 3, dtype=torch.int64), ValueError, ["[T]", "[2, 3]"]),
        (torch.tensor(3), ValueError, ["[T]", "[]"]),
        (3, TypeError, ["text or integers", "int"]),
        (b"bytes", TypeError, ["text or integers", "bytes"]),
        (None, TypeError, ["text or integers", "NoneType"]),
        ("text", ValueError, ["tokenizer", "Session(model, tokenizer)"]),
    ],
    ids=repr,
)
def test_what_are_no_tokens_is_refused_and_not_read(tokens, kind, words):
    session = varla.Session(tiny()).feed([5])
    before = session.logits
    with pytest.raises(kind) as caught:
        session.feed(tokens)
    assert all(word in str(caught.value) for word in words)
    assert session.position == 1
    assert torch.equal(session.logits, before)


def test_an_iterator_is_read_up_to_the_piece_with_the_wrong_token(monkeypatch):
    monkeypatch.setattr(module, "PIECE", 4)
    session = varla.Session(tiny())
    with pytest.raises(ValueError, match="got 999"):
        session.feed(iter([5] * 6 + [999]))
    assert session.position == 4
    with pytest.raises(ValueError, match="got 999"):
        session.feed([5] * 6 + [999])
    assert session.position == 4


def test_nothing_follows_from_nothing():
    session = varla.Session(tiny(), tokenizer()).feed("")
    for ask in (
        lambda: session.logits,
        lambda: session.generate(3),
        lambda: session.generate_text(3),
        lambda: session.probabilities(),
    ):
        with pytest.raises(ValueError, match="nothing was fed yet"):
            ask()


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"temperature": -1}, ValueError, "temperature must be at least 0"),
        ({"temperature": float("nan")}, ValueError, "temperature must be finite"),
        ({"temperature": "hot"}, TypeError, "temperature must be a number"),
        ({"top_k": 0}, ValueError, "top_k must be at least 1"),
        ({"top_p": 0}, ValueError, "top_p must be greater than 0"),
        ({"top_p": 1.5}, ValueError, "top_p must be at most 1"),
        ({"seed": -1}, ValueError, "seed must be at least 0"),
        ({"max_new_tokens": -1}, ValueError, "max_new_tokens must be at least 0"),
        ({"max_new_tokens": 1.5}, TypeError, "max_new_tokens must be an integer"),
        ({"stop": 259}, ValueError, r"stop must be from 0 to 258 \(the model's vocabulary\), got 259$"),
        ({"stop": 1.5}, TypeError, "stop must be token ids or text that is not empty, got 1.5"),
        ({"stop": [1.5]}, TypeError, "stop must be token ids"),
        ({"stop": ""}, TypeError, "stop must be token ids"),
        ({"stop": "text"}, TypeError, "generate_text stops at text"),
        ({"temprature": 1}, TypeError, "temprature"),
    ],
    ids=repr,
)
def test_wrong_options_are_refused_before_anything_is_generated(options, kind, words):
    session = varla.Session(tiny()).feed([5])
    with pytest.raises(kind, match=words):
        session.generate(**options)


def test_an_end_of_text_beyond_the_vocabulary_is_named():
    model = tiny()
    model.generation_config.eos_token_id = 9999
    with pytest.raises(ValueError, match=r"stop must be from 0 to 258 .* got 9999, its end-of-text token"):
        varla.Session(model).feed([5]).generate(3)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (None, "texts must be strings, one after the other, got NoneType"),
        (["a", 1], "got int among them"),
        (b"a", "int"),
    ],
)
def test_what_is_no_text_is_refused(texts, words):
    session = varla.Session(tiny(), tokenizer())
    with pytest.raises(TypeError, match=words):
        session.feed_text(texts)
    assert session.position == 0


def test_other_models_and_tokenizers_are_refused():
    for folder in ("runs/book/model", Path("runs/book/model")):
        with pytest.raises(TypeError, match=r"got \w+; VarlaForCausalLM.from_pretrained\(FOLDER\) loads one"):
            varla.Session(folder)
    for other in ("bytes", 3):
        with pytest.raises(TypeError, match="tokenizer must be a tokenizer of transformers', or None, got"):
            varla.Session(tiny(), other)
    with pytest.raises(TypeError, match="VarlaForCausalLM, got Linear"):
        varla.Session(torch.nn.Linear(2, 2))
    with pytest.raises(TypeError, match="VarlaForCausalLM, got VarlaModel"):
        varla.Session(tiny().model)
    with pytest.raises(ValueError, match="259 tokens, the model embeddings for 200"):
        varla.Session(tiny(vocab_size=200), tokenizer())
    with pytest.raises(ValueError, match="only with a tokenizer"):
        varla.Session(tiny()).feed([5]).generate_text(3)


def test_logits_that_are_not_finite_are_an_error():
    model = tiny()
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    with pytest.raises(ValueError, match="not finite"):
        next(varla.Session(model).feed([5]).generate(1))


def test_nothing_is_kept_for_gradients():
    assert not varla.Session(tiny()).feed(ids(5)).logits.requires_grad
    assert not varla.Session(tiny()).feed(ids(5))._cache.state.layers[0].conv.requires_grad


def test_it_says_what_it_is():
    session = varla.Session(tiny()).feed(ids(5))
    assert repr(session) == f"Session(5 tokens read, {session.nbytes} bytes)"


def test_text_is_read_while_it_comes(monkeypatch):
    monkeypatch.setattr("varla.session.text.CHARACTERS", 10)
    session, positions = varla.Session(tiny(), tokenizer()), []

    def texts():
        for _ in range(5):
            positions.append(session.position)
            yield "some words\n"

    session.feed_text(texts())
    assert session.position == 55
    assert positions == [0, 10, 21, 32, 43]  # all but what may go on in the same line was read when the next came


def test_the_example_in_the_documentation_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("Es war einmal.\n" * 20)
    text = (Path(__file__).parent.parent.parent / "docs" / "streaming.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names = {}
    exec(compile(code, "streaming.md", "exec"), names)
    assert names["session"].position > 300
    assert (tmp_path / "book.state").stat().st_size > 0
