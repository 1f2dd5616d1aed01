"""`varla score`: how well a trained model predicts a text, by how much of it is seen."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import typer

from varla.cli.generate import load, open_text
from varla.cli.options import Device, Model
from varla.cli.output import say, show, table
from varla.cli.reading import reading

T = TypeVar("T")
ALL = "all"
DEFAULT = ("512", "2048", ALL)


def score(
    model: Model,
    file: Annotated[Path, typer.Argument(help="File of text, of any length.", metavar="FILE")],
    context: Annotated[
        list[str] | None,
        typer.Option(
            metavar=f"N|{ALL}",
            help=f"Read the text in windows of N tokens, or as a whole. May be repeated. Default: "
            f"{', '.join(DEFAULT)}.",
        ),
    ] = None,
    device: Device = None,
) -> None:
    """Bits per byte and perplexity of a text, at several context lengths, in constant memory.

    Every window is read from an empty state; its first token is given, all others are predicted.
    """
    contexts = [_context(each) for each in context or DEFAULT]
    with open_text(file) as opened, reading(str(file), opened) as pieces:
        found, tokenizer = load(model, device)
        from varla.lm.streaming import score_stream
        from varla.session.text import encode

        texts = Counted(pieces, lambda text: len(text.encode()))
        tokens = Counted(encode(texts, tokenizer), len)
        scores = score_stream(found, tokens, contexts, lambda: texts.total)
    rows = [
        (
            ALL if length is None else str(length),
            f"{each.bits_per_byte:.4f}",
            f"{each.perplexity:.3f}",
            str(each.tokens),
        )
        for length, each in scores.items()
        if length is None or length <= tokens.total
    ]
    say(f"text     {file}: {texts.total:,} bytes, {tokens.total:,} tokens")
    for length in scores:
        if length is not None and length > tokens.total:
            say(f"         no context of {length}: the text is shorter")
    headers = ("context", "bits per byte", "perplexity", "tokens predicted")
    show(table(headers, rows, right=headers))


class Counted(Generic[T]):
    """Items as they come, and the sum of their sizes so far."""

    def __init__(self, items: Iterable[T], size: Callable[[T], int]):
        self.items, self.size, self.total = items, size, 0

    def __iter__(self) -> Iterator[T]:
        for item in self.items:
            self.total += self.size(item)
            yield item


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
