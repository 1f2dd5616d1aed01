"""How the tokens are divided among programs: tables made on the host from the sequence lengths, kept for the next call.

A batch of rows is treated as a packed one: tokens [B T, H, *], cut into sequences, those into chunks of 64 tokens (the
S part) and into spans (the A part). The tables depend on lengths only, and kernels take their sizes at run time, so
that no new length compiles anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

CHUNK = 64
SPANS = (1024, 512, 256)  # tokens
GRADIENT_SPAN = 256  # tokens that the gradient of u is taken over at once: the fewest operations at D=128
FILL = 512  # programs that fill a large GPU several times over


@dataclass(frozen=True)
class Plan:
    """chunks [*, 2]: (token, count); places [*, 2]: (sequence, position in it) of the same.

    spans, short and whole [*, 5]: (token, count, sequence, position, last of its sequence).

    first, span_first and short_first [sequences + 1]: where each sequence's chunks, spans and short spans begin. All
    int32. `empty`: sequences without tokens.
    """

    chunks: Tensor
    places: Tensor
    first: Tensor
    spans: Tensor
    span_first: Tensor
    short: Tensor
    short_first: Tensor
    whole: Tensor
    span: int
    empty: tuple[int, ...]

    @property
    def one_span(self) -> bool:
        """Whether no sequence is cut into several spans."""
        return len(self.spans) == len(self.whole)


def parts(size: int, part: int) -> int:
    """How many parts of a length there are in a size, the last perhaps cut short. (Triton's own costs 10 us a call.)"""
    return -(-size // part)


def span_length(tokens: int, heads: int) -> int:
    """Tokens in a span: long, unless there would be too few spans to fill a GPU."""
    return next((length for length in SPANS if tokens * heads >= FILL * length), SPANS[-1])


def spans_needed(sequences: int, tokens: int, span: int, packed: bool) -> int:
    """An upper bound, from shapes alone, on the spans of `tokens` tokens in all; exact when nothing is packed."""
    return tokens // span + sequences if packed else sequences * max(1, parts(tokens // max(sequences, 1), span))


@lru_cache(maxsize=64)
def make_plan(lengths: tuple[int, ...], span: int, device: torch.device) -> Plan:
    """The tables for sequences of these lengths, laid end to end."""
    chunks, places, first, whole = [], [], [0], []
    start = 0
    for sequence, length in enumerate(lengths):
        chunks += [(start + at, min(CHUNK, length - at)) for at in range(0, length, CHUNK)]
        places += [(sequence, at) for at in range(0, length, CHUNK)]
        whole.append((start, length, sequence, 0, 1))
        first.append(len(chunks))
        start += length

    def cut(part: int) -> tuple[list[tuple[int, ...]], list[int]]:
        """Spans of `part` tokens, at least one to a sequence, and where each sequence's begin."""
        found: list[tuple[int, ...]] = []
        begins = [0]
        for start, length, sequence, *_ in whole:
            for at in range(0, max(length, 1), part):
                found.append((start + at, min(part, length - at), sequence, at, int(at + part >= length)))
            begins.append(len(found))
        return found, begins

    spans, span_first = cut(span)
    short, short_first = cut(GRADIENT_SPAN)

    def table(values: Sequence[tuple[int, ...]] | Sequence[int], width: int | None = None) -> Tensor:
        made = torch.tensor(values, dtype=torch.int32)
        return (made if width is None else made.view(-1, width)).to(device)

    empty = tuple(i for i, length in enumerate(lengths) if length == 0)
    return Plan(
        table(chunks, 2),
        table(places, 2),
        table(first),
        table(spans, 5),
        table(span_first),
        table(short, 5),
        table(short_first),
        table(whole, 5),
        span,
        empty,
    )
