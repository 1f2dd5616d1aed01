"""Short causal convolution, one filter a channel, followed by SiLU; also for packed sequences and decoding."""

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from varla.ops.convolution import last_inputs, short_convolution
from varla.ops.split import Packing, Split, local


class ShortConvolution(nn.Module):
    """y_t = silu(sum_j w_j x_{t-j} + b), j = 0 .. width - 1, for each of `channels` channels.

    The state is the last width - 1 inputs, [rows, width - 1, channels]; zeros at the start of a sequence.
    """

    def __init__(self, channels: int, width: int = 4, bias: bool = True):
        """Weights start as in PyTorch's Conv1d."""
        super().__init__()
        self.channels, self.width = channels, width
        self.conv = nn.Conv1d(channels, channels, width, groups=channels, bias=bias)

    def state_bytes(self) -> int:
        """Bytes of one row's state, in float32."""
        return 4 * (self.width - 1) * self.channels

    def forward(self, x: Tensor, state: Tensor | None = None, cu_seqlens: Packing = None) -> tuple[Tensor, Tensor]:
        """x [B, T, channels] to (y [B, T, channels], state); with cu_seqlens [N + 1], B = 1 and N rows of state."""
        if isinstance(cu_seqlens, Split):
            x, state = self._before(x, state, cu_seqlens)
        cu_seqlens = local(cu_seqlens)
        rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        state = x.new_zeros(rows, self.width - 1, self.channels) if state is None else state
        after = last_inputs(x, state, cu_seqlens)
        if x.shape[1] == 0:
            return x, after
        return short_convolution(x, self.conv.weight[:, 0], self.conv.bias, state, cu_seqlens), after

    def _before(self, x: Tensor, state: Tensor | None, split: Split) -> tuple[Tensor, Tensor]:
        """(x, state of this rank's sequences before its tokens x), where tokens are spread over ranks."""
        rows, past = split.check(x.shape[0], x.shape[1]), self.width - 1
        state = x.new_zeros(rows, past, self.channels) if state is None else split.rows(state).to(x.dtype)
        if past == 0 or split.ranks == 1:
            return x, state
        end = split.last(x)[:, -past:]
        found, (x,) = split.gather([pad(end, (0, 0, past - end.shape[1], 0))], [x])
        first = split.only_first(state)
        for rank in split.before:
            new = min(past, split.length_on(rank))
            first = torch.cat((first[:, new:], found[rank][0][:, past - new :]), 1)
        return x, split.first_row(state, first)
