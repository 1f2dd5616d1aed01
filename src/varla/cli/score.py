"""`varla score`: how well a trained model predicts a text, by how much of it is seen."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from varla.cli.generate import load, open_text
from varla.cli.options import Device
from varla.cli.output import say, show, table

ALL = "all"
DEFAULT = ("512", "2048", ALL)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(epilog="Example: varla score runs/book/model other.txt --context 512 --context all")(score)


def score(
    model: Annotated[Path, typer.Argument(help="Folder of a model, with its tokenizer.", metavar="MODEL")],
    file: Annotated[Path, typer.Argument(help="File of text, of any length.", metavar="FILE")],
    context: Annotated[
        list[str] | None,
        typer.Option(
            metavar=f"N|{ALL}",
            help=f"Read the text in windows of N tokens, or as a whole. May be given many times; left out: "
            f"{', '.join(DEFAULT)}.",
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Bits per byte and perplexity of a text, at several context lengths, in constant memory.

    Every window is read from an empty state; its first token is given, all others are predicted.
    """
    contexts = [_context(each) for each in context or DEFAULT]
    with open_text(file) as opened:
        found, tokenizer = load(model, device)
        from varla.lm.streaming import score_stream
        from varla.session.text import encode, read_utf8

        counted = Counted(read_utf8(opened, str(file)))
        tokens = Tokens(encode(counted, tokenizer))
        scores = score_stream(found, tokens, contexts, lambda: counted.bytes)
    rows = [
        (
            ALL if length is None else str(length),
            f"{each.bits_per_byte:.4f}",
            f"{each.perplexity:.3f}",
            str(each.tokens),
        )
        for length, each in scores.items()
        if length is None or length <= tokens.count
    ]
    say(f"text     {file}: {counted.bytes:,} bytes, {tokens.count:,} tokens")
    for length in scores:
        if length is not None and length > tokens.count:
            say(f"         no context of {length}: the text is shorter")
    headers = ("context", "bits per byte", "perplexity", "tokens predicted")
    show(table(headers, rows, right=headers))


class Counted:
    """Strings as they come, and how many bytes of UTF-8 those were."""

    def __init__(self, texts: Iterator[str]):
        """None yet."""
        self.texts, self.bytes = texts, 0

    def __iter__(self) -> Iterator[str]:
        """The same strings."""
        for text in self.texts:
            self.bytes += len(text.encode())
            yield text


class Tokens:
    """Pieces of tokens as they come, and how many those were."""

    def __init__(self, pieces: Iterator[list[int]]):
        """None yet."""
        self.pieces, self.count = pieces, 0

    def __iter__(self) -> Iterator[list[int]]:
        """The same pieces."""
        for piece in self.pieces:
            self.count += len(piece)
            yield piece


def _context(text: str) -> int | None:
    """Tokens of a window; None for the whole text."""
    from varla.arguments import check_count

    if text == ALL:
        return None
    try:
        length = int(text)
    except ValueError:
        raise ValueError(f"--context must be a number of tokens or {ALL!r}, got {text!r}") from None
    check_count("--context", length, least=2, because="the first token is given")
    return length
