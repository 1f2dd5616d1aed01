"""Text in pieces: from files to strings, from strings to tokens, from tokens to strings."""

import codecs
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

CHARACTERS = 1 << 16  # most characters that are tokenised at a time
_WAIT = 8  # most tokens to hold back while a character is incomplete
_PARTS = 3  # most tokens of an incomplete character: UTF-8 has up to four bytes
_CUT = "\N{REPLACEMENT CHARACTER}"  # tokenizers decode an incomplete character to this


def read_utf8(file: BinaryIO, name: str) -> Iterator[str]:
    """The text of a binary file, a piece at a time. Bytes that are not UTF-8 are a ValueError that says where."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0  # bytes before the chunk
    while True:
        chunk = file.read(CHARACTERS)
        held = len(decoder.getstate()[0])
        try:
            text = decoder.decode(chunk, final=not chunk)
        except UnicodeDecodeError as error:
            where = done - held + error.start
            raise ValueError(
                f"{name} is not UTF-8 text: byte {where} is {error.object[error.start]:#04x} ({error.reason})"
            ) from error
        if text:
            yield text
        if not chunk:
            return
        done += len(chunk)


def pieces(texts: Iterable[str], size: int) -> Iterator[str]:
    """The same text in pieces of at most `size` characters, cut at line ends where possible.

    The pieces do not depend on where `texts` are cut.
    """
    held = ""
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"texts must be strings, one after the other, got {type(text).__name__} among them")
        held += text
        begin = 0
        while len(held) - begin > size:
            end = held.rfind("\n", begin, begin + size) + 1 or begin + size
            yield held[begin:end]
            begin = end
        held = held[begin:]
    if held:
        yield held


def encode(texts: Iterable[str], tokenizer: Any) -> Iterator[list[int]]:
    """Token ids of a text, a piece at a time. No special tokens are added, and text that looks like one is text."""
    for text in pieces(texts, CHARACTERS):
        try:
            text.encode()
        except UnicodeEncodeError as error:  # Python's surrogate for a byte that is not UTF-8
            raise ValueError(f"the text is not Unicode: it holds {text[error.start]!r}, half of a character") from error
        yield tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]


class Decoder:
    """Tokens to text, one at a time. A character that is split over tokens comes out when it is complete.

    The first `known` of `ids` were decoded already; the others wait for the rest of a character. The former are kept
    because some tokenizers decode a token differently after others.
    """

    def __init__(self, tokenizer: Any, ids: Iterable[int] = (), known: int = 0):
        """A new decoder, or one that continues with another's `ids` and `known`."""
        self.tokenizer = tokenizer
        self.ids, self.known = list(ids), known

    def add(self, token: int) -> str:
        """The text that this token completes; "" if it completes none, or is a special token."""
        self.ids.append(token)
        text = self._new(len(self.ids))
        if text and not text.endswith(_CUT):
            return self._give(text, len(self.ids))
        if len(self.ids) - self.known > _WAIT:  # no character is that long: the bytes are invalid
            end = len(self.ids) - _PARTS
            return self._give(self._new(end), end)
        return ""

    def flush(self) -> str:
        """The text of the remaining tokens, even if it ends in an incomplete character."""
        return self._give(self._new(len(self.ids)), len(self.ids))

    def clone(self) -> "Decoder":
        """An independent copy."""
        return Decoder(self.tokenizer, self.ids, self.known)

    def _new(self, end: int) -> str:
        return self._decode(self.ids[:end])[len(self._decode(self.ids[: self.known])) :]

    def _decode(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _give(self, text: str, end: int) -> str:
        self.ids, self.known = self.ids[self.known :], end - self.known
        return text
