"""Text as one long array of tokens on disk, with the start of each document. Written once, then memory-mapped.

The files are written aside and renamed, with a checksum. If it does not match, the text is tokenized again.
"""

import glob
import gzip
import hashlib
import json
import lzma
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from varla.lm.code import NEVER, code_in_dataset, code_in_model
from varla.runs.writing import naming, written_aside
from varla.session.text import encode

BYTES = "bytes"  # the tokenizer that needs no files
END = "<|end|>"  # its only special token
COMPRESSED: Mapping[str, Any] = {".gz": gzip, ".xz": lzma}


class TextError(ValueError):
    """The text cannot be read. The message names the file."""


@dataclass(frozen=True)
class Corpus:
    """Tokens of all documents end to end [N], the start of each document [documents], and the bytes of the text."""

    tokens: NDArray[Any]
    starts: NDArray[np.int64]
    text_bytes: int

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def bytes_per_token(self) -> float:
        """The average over the text."""
        return self.text_bytes / len(self.tokens)

    def split(self, share: float) -> tuple["Corpus", "Corpus"]:
        """(all but the last share of the tokens, that share), each with its part of the bytes."""
        cut = len(self.tokens) - round(share * len(self.tokens))
        parts = []
        for begin, end in ((0, cut), (cut, len(self.tokens))):
            inside = self.starts[(self.starts > begin) & (self.starts < end)] - begin
            size = round(self.text_bytes * (end - begin) / max(1, len(self.tokens)))
            parts.append(Corpus(self.tokens[begin:end], np.concatenate(([0], inside)), size))
        return parts[0], parts[1]


def load_tokenizer(name: str) -> Any:
    """A tokenizer: "bytes" (256 tokens and one that ends a text), a folder, or a hub name. None of its code is run."""
    from transformers import AutoTokenizer

    if name == BYTES:
        return byte_tokenizer()
    if Path(name).is_dir() and (found := code_in_model(Path(name))):
        raise TextError(f"tokenizer {name!r} {found}")
    try:
        return AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        if "custom code" in first:
            raise TextError(f"tokenizer {name!r} brings its own Python code, {NEVER}") from error
        raise TextError(
            f"tokenizer {name!r} is neither {BYTES!r}, nor a folder with one, nor on the hub: {first}"
        ) from error


def byte_tokenizer() -> Any:
    """Each byte is a token; 256 ends a text. (ByT5's tokenizer would also end every prompt with that token.)"""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    # ByteLevel writes printable bytes as Latin-1 does, the others as the letters from 256 on.
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
    found = Tokenizer(models.BPE(vocab=letters, merges=[]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    found.decoder = decoders.ByteLevel()
    # It pads with the end of a text, on the left, where `generate` expects padding. One more token would not fit models
    # that have 257.
    return PreTrainedTokenizerFast(
        tokenizer_object=found,
        eos_token=END,
        pad_token=END,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def files(source: str | list[str]) -> list[Path]:
    """The files that paths and patterns match, in order. A pattern without a match is an error."""
    found: list[Path] = []
    for pattern in [source] if isinstance(source, str) else source:
        matches = sorted(glob.glob(pattern, recursive=True))
        if not matches:
            raise TextError(f"no file matches {pattern!r}")
        matched = [Path(match) for match in matches if Path(match).is_file()]
        if not matched:
            raise TextError(f"no file matches {pattern!r}, but {matches[0]} does: name files, as {matches[0]}/*.txt")
        found += matched
    return found


def documents(source: str | list[str] | Mapping[str, Any]) -> Iterator[str]:
    """The texts of a source: every line of a .jsonl file (key "text"), other files whole, or a dataset's column.

    Files may be compressed: .jsonl.gz, .txt.xz.
    """
    if isinstance(source, Mapping):
        yield from _dataset(source)
        return
    for path in files(source):
        if (path.with_suffix("") if path.suffix in COMPRESSED else path).suffix == ".jsonl":
            yield from _lines(path)
        else:
            yield read_text(path)


def read_text(path: Path) -> str:
    """A file's text, decompressed if needed. The error for a file that is not UTF-8 says where."""
    try:
        if path.suffix in COMPRESSED:
            with COMPRESSED[path.suffix].open(path, "rt", encoding="utf-8") as file:
                return str(file.read())
        return path.read_text(encoding="utf-8")
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise TextError(f"{path} cannot be unpacked: {error}") from error
    except UnicodeDecodeError as error:
        raise TextError(f"{path} is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}") from error
    except OSError as error:
        raise TextError(f"{path} cannot be read: {error.strerror or error}") from error


def _lines(path: Path) -> Iterator[str]:
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)["text"]
        except (json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
            raise TextError(f'{path}, line {number}: not a JSON object with a key "text"') from error
        if not isinstance(text, str):
            raise TextError(f'{path}, line {number}: "text" must be a string, got {type(text).__name__}')
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair
            half = ascii(text[error.start])
            raise TextError(f'{path}, line {number}: "text" holds {half}, half of a character') from error
        yield text


def _dataset(source: Mapping[str, Any]) -> Iterator[str]:
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise TextError(
            'a dataset by name needs the package datasets: pip install "varla[lm]", or ".[lm]" in a clone'
        ) from error
    column = source.get("column", "text")
    if code := code_in_dataset(source["dataset"]):
        raise TextError(f"dataset {source['dataset']!r} {code}")
    try:
        found = datasets.load_dataset(
            source["dataset"], source.get("config"), split=source.get("split", "train"), trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise TextError(f"dataset {source['dataset']!r} cannot be loaded: {error}") from error
    if column not in found.column_names:
        raise TextError(f"dataset {source['dataset']!r} has no column {column!r}, but {', '.join(found.column_names)}")
    for number, row in enumerate(found):
        if not isinstance(row[column], str):
            kind = type(row[column]).__name__
            raise TextError(f"dataset {source['dataset']!r}, row {number}: {column!r} must be a string, got {kind}")
        yield row[column]


def corpus(source: str | list[str] | Mapping[str, Any], tokenizer: Any, folder: Path) -> Corpus:
    """The source's tokens, from `folder` if the same text was tokenized there before.

    Every document ends with the tokenizer's end-of-text token, if it has one.
    """
    target = folder / text_key(source, tokenizer)
    found = _read(target, tokenizer)
    if found is None:
        try:
            with written_aside(target) as aside, naming(target):
                _write(documents(source), tokenizer, aside)
        except BaseException:
            with suppress(OSError):  # it holds the tokens of another text
                folder.rmdir()
            raise
        found = _read(target, tokenizer)
        if found is None:
            raise TextError(f"{target} cannot be read back: is the disk full?")
    return found


def _read(folder: Path, tokenizer: Any) -> Corpus | None:
    """The tokens written before; None if they are missing or are not those that were written."""
    try:
        size = json.loads((folder / "size.json").read_text())
        tokens = np.memmap(folder / "tokens.bin", _kind(tokenizer), "r")
        starts = np.fromfile(folder / "starts.bin", np.int64)
        found = Corpus(tokens, starts, size["text bytes"])
        return found if size["sha256"] == _checksum(hashlib.sha256(tokens.data), starts, found.text_bytes) else None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def _write(texts: Iterator[str], tokenizer: Any, folder: Path) -> None:
    starts, count, size = [], 0, 0
    end = tokenizer.eos_token_id
    written = hashlib.sha256()
    with (folder / "tokens.bin").open("wb") as file:
        for text in texts:
            if not text:
                continue
            starts.append(count)
            size += len(text.encode())
            for ids in (*encode([text], tokenizer), [] if end is None else [end]):
                data = np.asarray(ids, _kind(tokenizer)).tobytes()
                file.write(data)
                written.update(data)
                count += len(ids)
    if not count:
        raise TextError("there is no text: every document is empty")
    begins = np.asarray(starts, np.int64)
    (folder / "starts.bin").write_bytes(begins.tobytes())
    (folder / "size.json").write_text(json.dumps({"text bytes": size, "sha256": _checksum(written, begins, size)}))


def _checksum(tokens: Any, starts: NDArray[np.int64], text_bytes: int) -> str:
    """The checksum of a corpus, from one that has seen its tokens."""
    tokens.update(starts.tobytes() + f"{len(starts)} {text_bytes}".encode())
    return str(tokens.hexdigest())


def _kind(tokenizer: Any) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if len(tokenizer) <= 1 << 16 else np.uint32


def text_key(source: str | list[str] | Mapping[str, Any], tokenizer: Any) -> str:
    """Identifies text and tokenizer: by the files' names, sizes and times, without reading them."""
    if isinstance(source, Mapping):
        texts: list[Any] = [dict(source)]
    else:
        texts = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files(source)]
    words = hashlib.blake2b(json.dumps(sorted(tokenizer.get_vocab().items())).encode(), digest_size=8).hexdigest()
    whole = json.dumps([texts, type(tokenizer).__name__, words, tokenizer.eos_token_id])
    return hashlib.blake2b(whole.encode(), digest_size=8).hexdigest()
