"""Short causal convolution, one filter a channel, followed by SiLU; also for packed sequences and decoding."""

from torch import Tensor, nn

from varla.ops.convolution import last_inputs, short_convolution


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

    def forward(
        self, x: Tensor, state: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x [B, T, channels] to (y [B, T, channels], state); with cu_seqlens [N + 1], B = 1 and N rows of state."""
        rows = x.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        state = x.new_zeros(rows, self.width - 1, self.channels) if state is None else state
        after = last_inputs(x, state, cu_seqlens)
        if x.shape[1] == 0:
            return x, after
        return short_convolution(x, self.conv.weight[:, 0], self.conv.bias, state, cu_seqlens), after
