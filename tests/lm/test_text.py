"""Text to tokens: documents, files that cannot be read, and the array on disk."""

import errno
import gzip
import json
import lzma
from unittest.mock import Mock

import numpy as np
import pytest
from transformers import ByT5Tokenizer

from varla.lm import text
from varla.lm.text import TextError, corpus, documents, load_tokenizer
from varla.session.text import encode


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer("bytes")


def test_bytes_come_back(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("Grüße, 世界")
    (tmp_path / "b.txt").write_text("second")
    found = corpus([str(tmp_path / "*.txt")], tokenizer, tmp_path / "tokens")
    assert found.starts.tolist() == [0, len("Grüße, 世界".encode()) + 1]
    assert tokenizer.decode(found.tokens[: found.starts[1] - 1]) == "Grüße, 世界"
    assert found.tokens[found.starts[1] - 1] == tokenizer.eos_token_id
    assert found.text_bytes == len("Grüße, 世界".encode()) + 6
    assert found.bytes_per_token == pytest.approx(found.text_bytes / len(found))


def test_lines_of_json_are_documents(tokenizer, tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"text": each}) + "\n" for each in ("one", "", "two")) + "\n")
    assert list(documents(str(file))) == ["one", "", "two"]
    assert len(corpus(str(file), tokenizer, tmp_path / "tokens").starts) == 2  # an empty one is none


@pytest.mark.parametrize(("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_files_may_be_compressed(tmp_path, suffix, compress):
    lines = "".join(json.dumps({"text": each}) + "\n" for each in ("one", "two"))
    (tmp_path / f"a.jsonl{suffix}").write_bytes(compress(lines.encode()))
    (tmp_path / f"b.txt{suffix}").write_bytes(compress("Grüße\n".encode()))
    assert list(documents([str(tmp_path / f"a.jsonl{suffix}"), str(tmp_path / f"b.txt{suffix}")])) == [
        "one", "two", "Grüße\n",
    ]  # fmt: skip
    for content in (compress(lines.encode())[:-9], b"not compressed at all"):
        (tmp_path / f"a.jsonl{suffix}").write_bytes(content)
        with pytest.raises(TextError, match=f"a.jsonl{suffix} cannot be unpacked"):
            list(documents(str(tmp_path / f"a.jsonl{suffix}")))


def test_a_line_ends_at_its_end_alone(tmp_path):
    """Not at what Unicode takes for one, which JSON need not escape."""
    file = tmp_path / "a.jsonl"
    file.write_text('{"text": "one\u2028two\x85three"}\r\n', newline="")
    assert list(documents(str(file))) == ["one\u2028two\x85three"]


def test_pieces_of_a_long_text_are_the_whole(tokenizer, tmp_path, monkeypatch):
    long = "".join(f"line {i}\n" for i in range(50)) + "x" * 90
    (tmp_path / "a.txt").write_text(long)
    monkeypatch.setattr("varla.session.text.CHARACTERS", 40)
    found = corpus(str(tmp_path / "a.txt"), tokenizer, tmp_path / "tokens")
    assert tokenizer.decode(found.tokens[:-1]) == long


def test_it_is_made_once_and_again_when_the_text_changes(tokenizer, tmp_path, monkeypatch):
    file = tmp_path / "a.txt"
    file.write_text("first text")
    first = corpus(str(file), tokenizer, tmp_path / "tokens")
    with monkeypatch.context() as patched:
        patched.setattr(text, "documents", None)  # it is not read again
        assert np.array_equal(corpus(str(file), tokenizer, tmp_path / "tokens").tokens, first.tokens)
    file.write_text("another text, longer")
    assert len(corpus(str(file), tokenizer, tmp_path / "tokens")) > len(first)


def test_what_was_cut_short_is_made_anew(tokenizer, tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("some text")
    whole = np.array(corpus(str(file), tokenizer, tmp_path / "tokens").tokens)
    (folder,) = (tmp_path / "tokens").iterdir()
    (folder / "size.json").unlink()
    (folder / "tokens.bin").write_bytes(b"\0\0")
    assert np.array_equal(corpus(str(file), tokenizer, tmp_path / "tokens").tokens, whole)


@pytest.mark.parametrize("name", ["tokens.bin", "starts.bin", "size.json"])
@pytest.mark.parametrize("kept", [0, 5, 6])
def test_what_was_damaged_later_is_made_anew(tokenizer, tmp_path, name, kept):
    file = tmp_path / "a.txt"
    file.write_text("some text")
    whole = np.array(corpus(str(file), tokenizer, tmp_path / "tokens").tokens)
    (folder,) = (tmp_path / "tokens").iterdir()
    (folder / name).write_bytes((folder / name).read_bytes()[:kept])
    found = corpus(str(file), tokenizer, tmp_path / "tokens")
    assert np.array_equal(found.tokens, whole)
    assert (found.starts.tolist(), found.text_bytes) == ([0], 9)


@pytest.mark.parametrize("name", ["tokens.bin", "starts.bin", "size.json"])
def test_a_flipped_bit_changes_no_token(tokenizer, tmp_path, name):
    for i in range(3):
        (tmp_path / f"{i}.txt").write_text("some text")
    first = corpus(str(tmp_path / "*.txt"), tokenizer, tmp_path / "tokens")
    whole, starts = np.array(first.tokens), first.starts.tolist()
    (folder,) = (tmp_path / "tokens").iterdir()
    for at in range(0, (folder / name).stat().st_size, 7):
        content = bytearray((folder / name).read_bytes())
        content[at] ^= 1 << at % 8
        (folder / name).write_bytes(content)
        found = corpus(str(tmp_path / "*.txt"), tokenizer, tmp_path / "tokens")
        assert np.array_equal(found.tokens, whole)
        assert (found.starts.tolist(), found.text_bytes) == (starts, 27)


def test_a_reader_keeps_its_tokens_while_another_process_makes_them_anew(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("some text")
    first = corpus(str(tmp_path / "a.txt"), tokenizer, tmp_path / "tokens")
    (folder,) = (tmp_path / "tokens").iterdir()
    (folder / "size.json").unlink()
    corpus(str(tmp_path / "a.txt"), tokenizer, tmp_path / "tokens")
    assert bytes(first.tokens[:-1].tolist()) == b"some text"
    assert [path.name for path in (tmp_path / "tokens").iterdir()] == [folder.name], "nothing is left aside"


def test_what_cannot_be_written_leaves_nothing_and_names_the_tokens(tokenizer, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("some text")
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/tokens/\w+'"):
        corpus(str(tmp_path / "a.txt"), tokenizer, tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"good \xff bad", r"a.txt is not UTF-8 text: byte 5 is 0xff"),
        ("a.txt", b"", "there is no text: every document is empty"),
        ("a.jsonl", b'{"text": "x"}\n{"txt": 1}\n', r'a.jsonl, line 2: not a JSON object with a key "text"'),
        ("a.jsonl", b'{"text": 3}\n', r'line 1: "text" must be a string, got int'),
        ("a.jsonl", b"[1]\n", "line 1: not a JSON object"),
        pytest.param("a.jsonl", b"[" * 100_000, "line 1: not a JSON object", id="nested too deep"),
        ("a.jsonl", b'{"text": "x\\ud800"}\n', r"a.jsonl, line 1: \"text\" holds '\\ud800', half of a character"),
    ],
)
def test_text_that_cannot_be_read_is_named(tokenizer, tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TextError, match=message):
        corpus(str(tmp_path / name), tokenizer, tmp_path / "tokens")


def test_a_pattern_that_matches_nothing_is_an_error(tokenizer, tmp_path):
    with pytest.raises(TextError, match="no file matches"):
        corpus(str(tmp_path / "*.txt"), tokenizer, tmp_path / "tokens")


def test_a_folder_in_place_of_its_files_is_an_error(tokenizer, tmp_path):
    (tmp_path / "books").mkdir()
    with pytest.raises(TextError, match=r"no file matches .*books', but .*books does: name files, as .*books/\*\.txt"):
        corpus(str(tmp_path / "books"), tokenizer, tmp_path / "tokens")


def test_a_tokenizer_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TextError, match="is neither 'bytes', nor a folder with one"):
        load_tokenizer(str(tmp_path / "none"))


def test_a_share_is_split_off_the_end(tokenizer, tmp_path):
    for i in range(4):
        (tmp_path / f"{i}.txt").write_text("x" * 99)
    whole = corpus(str(tmp_path / "*.txt"), tokenizer, tmp_path / "tokens")
    first, last = whole.split(0.3)
    assert len(first) + len(last) == len(whole) == 400
    assert len(last) == 120
    assert first.starts.tolist() == [0, 100, 200]
    assert last.starts.tolist() == [0, 20]
    assert first.text_bytes + last.text_bytes == pytest.approx(whole.text_bytes, abs=1)


def test_a_dataset_by_name(tokenizer, tmp_path, monkeypatch):
    """A folder is a name, too."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text("".join(json.dumps({"body": each}) + "\n" for each in ("one", "two")))
    source = {"dataset": str(tmp_path / "set"), "column": "body"}
    assert list(documents(source)) == ["one", "two"]
    with pytest.raises(TextError, match="has no column 'text', but body"):
        list(documents({"dataset": str(tmp_path / "set")}))
    with pytest.raises(TextError, match="dataset 'no-such-set' cannot be loaded"):
        list(documents({"dataset": "no-such-set"}))


def test_a_byte_is_its_own_token(tokenizer, tmp_path):
    every = "".join(map(chr, range(0x250))) + "世界 😀"
    assert tokenizer(every).input_ids == list(every.encode())
    assert tokenizer.decode(list(every.encode())) == every
    assert len(tokenizer) == 257
    tokenizer.save_pretrained(tmp_path)
    assert load_tokenizer(str(tmp_path))(every).input_ids == list(every.encode())
    assert sorted(tokenizer.get_vocab().values()) == list(range(257))


@pytest.mark.parametrize("name", ["bytes", "byt5"])
def test_text_that_looks_like_a_special_token_is_text(name):
    tokenizer = load_tokenizer("bytes") if name == "bytes" else ByT5Tokenizer(extra_ids=0)
    odd = f"a </s> b <pad> {tokenizer.eos_token} c"
    (ids,) = encode([odd], tokenizer)
    assert len(ids) == len(odd.encode())
    assert tokenizer.decode(ids) == odd


def test_a_text_that_cannot_be_read_leaves_nothing(tokenizer, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff")
    with pytest.raises(TextError, match="not UTF-8"):
        corpus(str(tmp_path / "a.txt"), tokenizer, tmp_path / "tokens")
    assert not (tmp_path / "tokens").exists()
