"""Text in pieces: files that are UTF-8 and those that are not, where pieces end, characters split over tokens."""

import io
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from varla.session import text as module
from varla.session.text import Decoder, encode, pieces, read_utf8


class Bytes:
    """A tokenizer whose tokens are bytes; what is not UTF-8 is shown as most tokenizers show it."""

    def decode(self, ids, skip_special_tokens, clean_up_tokenization_spaces):
        return bytes(ids).decode(errors="replace")


@pytest.fixture
def bpe():
    """Byte pairs as in GPT-2, learned from a few words."""
    found = Tokenizer(models.BPE())
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    found.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=280, initial_alphabet=letters, show_progress=False)
    found.train_from_iterator(["hello world the cat " * 50], trainer)
    return PreTrainedTokenizerFast(tokenizer_object=found)


def stream(decoder, ids):
    return "".join([*(decoder.add(each) for each in ids), decoder.flush()])


@given(st.text(max_size=40), st.integers(1, 7))
def test_a_file_is_its_text_wherever_it_is_cut(text, size):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHARACTERS", size)
        assert "".join(read_utf8(io.BytesIO(text.encode()), "file")) == text


@pytest.mark.parametrize(
    ("data", "where"),
    [
        (b"\xff", 0),
        (b"abc\xffdef", 3),
        ("ab🙂".encode() + b"\x80", 6),
        ("ab🙂".encode()[:-1], 2),
        (b"a" * 9 + b"\xe2(", 9),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_what_is_not_utf8_is_named_by_its_place(data, where, size, monkeypatch):
    monkeypatch.setattr(module, "CHARACTERS", size)
    with pytest.raises(ValueError, match=rf"notes.txt is not UTF-8 text: byte {where} is {data[where]:#04x} \("):
        list(read_utf8(io.BytesIO(data), "notes.txt"))


def test_half_a_character_is_refused():
    with pytest.raises(ValueError, match=r"the text is not Unicode: it holds '\\udcff', half of a character"):
        list(encode(["a\udcff"], ByT5Tokenizer(extra_ids=0)))


@given(st.text("ab\n", max_size=60), st.integers(1, 9), st.lists(st.integers(0, 60)))
def test_pieces_are_the_text_and_do_not_depend_on_how_it_came(text, size, cuts):
    found = list(pieces([text], size))
    assert "".join(found) == text
    assert all(0 < len(each) <= size for each in found)
    edges = [0, *sorted(cuts), len(text)]
    assert list(pieces((text[a:b] for a, b in itertools.pairwise(edges)), size)) == found
    for each in found[:-1]:
        assert each.endswith("\n") or "\n" not in each


@pytest.mark.parametrize("kind", ["bytes", "byt5"])
@given(text=st.text(max_size=20))
def test_a_stream_of_bytes_is_the_text_in_whole_characters(kind, text):
    tokenizer, shift = (Bytes(), 0) if kind == "bytes" else (ByT5Tokenizer(extra_ids=0), 3)
    decoder = Decoder(tokenizer)
    found = [decoder.add(each + shift) for each in text.encode()]
    if "\ufffd" not in text:  # that one is what part of a character looks like: it comes with the next
        assert [each for each in found if each] == list(text)
    assert "".join([*found, decoder.flush()]) == text


@given(st.binary(max_size=40), st.text("aé🙂", min_size=1, max_size=5))
def test_what_is_no_text_is_not_waited_for(noise, text):
    decoder = Decoder(Bytes())
    found = ""
    for each in noise:
        found += decoder.add(each)
        assert len(decoder.ids) <= 2 * module._WAIT + 2
    found += stream(decoder, b"\n" + text.encode())
    assert found.endswith("\n" + text)


def test_a_tokenizer_of_byte_pairs(bpe):
    text = "hello 🙂 wörld ∑ the cat, 日本語.\n  x"
    decoder = Decoder(bpe)
    found = [decoder.add(each) for each in bpe(text)["input_ids"]]
    assert "".join(found) == text
    assert "🙂" in found
    assert " the" in found


def test_a_clone_goes_on_by_itself():
    decoder = Decoder(Bytes())
    decoder.add(0xC3)
    other = decoder.clone()
    assert (decoder.add(0xA9), other.add(0xA8)) == ("é", "è")


def test_spaces_that_depend_on_what_comes_before():
    class Words:
        def decode(self, ids, skip_special_tokens, clean_up_tokenization_spaces):
            return " ".join(f"w{each}" for each in ids)

    assert stream(Decoder(Words()), range(12)) == " ".join(f"w{each}" for each in range(12))
