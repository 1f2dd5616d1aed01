"""Registers the chunk form of an operator with PyTorch: a cell (see driver.Cell) run over all tokens."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from varla.ops.chunk import driver
from varla.ops.chunk.plan import SEGMENT_TOKENS, SEGMENT_TOKENS_GPU, make_plan, slots_needed
from varla.ops.custom_op import Arguments, StateOperator, present
from varla.ops.packing import sequence_bounds


class ChunkOperator(StateOperator):
    """The chunk form of an operator. Its settings are what the cell's constructor takes, and the chunk size."""

    def __init__(self, name: str, cell: type[Any], inputs: str, state: str, *settings: type[Any]) -> None:
        """Register the operator and its backward."""
        self.cell = lru_cache(maxsize=256)(cell)
        super().__init__(name, "chunk", inputs, state, cell.output_like, (*settings, int))

    def __call__(self, call: Arguments, state: Sequence[Any], chunk_size: int, keep: bool) -> tuple[Tensor, list[Any]]:
        """(outputs, final state). With `keep`, the operator also keeps what its backward needs."""
        tokens = self.tokens_in_chunk(call, state, chunk_size)
        o, *final = self.forward(*call.inputs, *state, call.t, call.cu_seqlens, *call.settings, tokens, keep)
        rest = iter(final)
        return o, [None if x is None else next(rest) for x in state]

    def tokens_in_chunk(self, call: Arguments, state: Sequence[Any], chunk_size: int) -> int:
        """Tokens in a chunk: as many as the caller wants, unless the operator has a bound of its own."""
        return chunk_size

    def run(self, *arguments: Any) -> list[Tensor]:
        """See StateOperator."""
        call, state, keep = self.split(arguments)
        kept = self.buffers(call, state) if keep else []
        for x in kept:
            x[-1].zero_()  # the spare one: no chunk fills it
        with torch.autocast(call.t.device.type, enabled=False):  # products run in the state's precision
            o, final = driver.forward(self._job(call), call.inputs, present(state), kept)
        return [o, *final, *kept]

    def run_backward(
        self, call: Arguments, kept: Sequence[Tensor], do: Tensor, dfinal: Sequence[Tensor]
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        """See StateOperator."""
        with torch.autocast(call.t.device.type, enabled=False):
            return driver.backward(self._job(call), call.inputs, kept, do, dfinal)

    def buffers(self, call: Arguments, state: Sequence[Any]) -> list[Tensor]:
        """The state before every chunk, and one more: PyTorch would bind an exported graph to lengths with one slot."""
        slots = slots_needed(call.t.shape[0], call.inputs[0].shape[1], call.settings[-1], call.cu_seqlens is not None)
        return [x.new_empty(slots + 1, *x.shape[1:]) for x in present(state)]

    def _job(self, call: Arguments) -> driver.Job:
        first: Tensor = call.inputs[0]
        B, T, H = first.shape[:3]
        *settings, chunk_size = call.settings
        if call.cu_seqlens is None:
            starts, lengths = [0] * B, [T] * B
        else:
            starts, lengths = sequence_bounds(call.cu_seqlens, T)
        segment = SEGMENT_TOKENS_GPU if first.is_cuda else SEGMENT_TOKENS
        plan = make_plan(starts, lengths, chunk_size, H, segment)
        return driver.Job(self.cell(*settings), plan, call.cu_seqlens is not None, call.t)
