"""How tokens are divided among programs: tables that the host makes from the sequence lengths and caches.

A batch of rows is treated as a packed one: tokens [B T, H, *] are cut into sequences. Sequences are cut into chunks of
64 tokens (for `memory`) and into longer spans (for `directions`). The tables depend on the lengths only, and kernels
take their sizes at run time, so a new length compiles nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

CHUNK = 64
SPANS = (1024, 512, 256)  # tokens
GRADIENT_SPAN = 256  # tokens in a span of the gradient of u: the fewest operations at D=128
GPU_PROGRAMS = 512  # enough programs to fill a large GPU several times


@dataclass(frozen=True)
class Plan:
    """Int32 tables of chunks, spans and sequences.

    chunks [*, 2]: (first token, number of tokens). chunk_position [*, 2]: (sequence, position in it) of each chunk.
    spans, gradient_spans and sequences [*, 5]: (first token, number of tokens, sequence, position in it, whether it is
    the last of its sequence). `gradient_spans` are for the gradient of u; `sequences` are spans of whole sequences.
    chunk_first, span_first and gradient_first [sequences + 1]: first chunk, span and gradient span of each sequence.
    `span`: tokens in a span. `empty`: the sequences without tokens.
    """

    chunks: Tensor
    chunk_position: Tensor
    chunk_first: Tensor
    spans: Tensor
    span_first: Tensor
    gradient_spans: Tensor
    gradient_first: Tensor
    sequences: Tensor
    span: int
    empty: tuple[int, ...]

    @property
    def one_span(self) -> bool:
        """Whether every sequence is a single span."""
        return len(self.spans) == len(self.sequences)


def parts(size: int, part: int) -> int:
    """size / part, rounded up. (triton.cdiv takes 10 us a call.)"""
    return -(-size // part)


def span_length(tokens: int, heads: int) -> int:
    """Tokens in a span: the longest length that still gives enough spans to fill a GPU, else the shortest."""
    return next((length for length in SPANS if tokens * heads >= GPU_PROGRAMS * length), SPANS[-1])


def spans_needed(sequences: int, tokens: int, span: int, packed: bool) -> int:
    """An upper bound, from shapes alone, on the spans of `tokens` tokens in total. It is exact if nothing is packed."""
    return tokens // span + sequences if packed else sequences * max(1, parts(tokens // max(sequences, 1), span))


@lru_cache(maxsize=64)
def make_plan(lengths: tuple[int, ...], span: int, device: torch.device, gradient_span: int = GRADIENT_SPAN) -> Plan:
    """The tables for sequences of these lengths, end to end."""
    chunks, chunk_position, chunk_first, sequences = [], [], [0], []
    start = 0
    for sequence, length in enumerate(lengths):
        chunks += [(start + at, min(CHUNK, length - at)) for at in range(0, length, CHUNK)]
        chunk_position += [(sequence, at) for at in range(0, length, CHUNK)]
        sequences.append((start, length, sequence, 0, 1))
        chunk_first.append(len(chunks))
        start += length

    def cut(part: int) -> tuple[list[tuple[int, ...]], list[int]]:
        """(spans of `part` tokens, at least one for each sequence; the first span of each sequence)."""
        pieces: list[tuple[int, ...]] = []
        first = [0]
        for start, length, sequence, *_ in sequences:
            for at in range(0, max(length, 1), part):
                pieces.append((start + at, min(part, length - at), sequence, at, int(at + part >= length)))
            first.append(len(pieces))
        return pieces, first

    spans, span_first = cut(span)
    gradient_spans, gradient_first = cut(gradient_span)

    def table(values: Sequence[tuple[int, ...]] | Sequence[int], width: int | None = None) -> Tensor:
        flat = torch.tensor(values, dtype=torch.int32)
        return (flat if width is None else flat.view(-1, width)).to(device)

    empty = tuple(i for i, length in enumerate(lengths) if length == 0)
    return Plan(
        table(chunks, 2),
        table(chunk_position, 2),
        table(chunk_first),
        table(spans, 5),
        table(span_first),
        table(gradient_spans, 5),
        table(gradient_first),
        table(sequences, 5),
        span,
        empty,
    )
