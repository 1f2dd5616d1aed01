"""Short causal convolution, one filter a channel, followed by SiLU. Right across packed sequences and in decode."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ShortConvolution(nn.Module):
    """y_t = silu(sum_j w_j x_{t-j} + b), j = 0 .. width - 1, for each of `channels` channels.

    The state is the last width - 1 inputs, [rows, width - 1, channels]; zeros at the start of a sequence.
    """

    def __init__(self, channels: int, width: int = 4, bias: bool = True):
        """PyTorch's own initialisation of a convolution."""
        super().__init__()
        self.channels, self.width = channels, width
        self.conv = nn.Conv1d(channels, channels, width, groups=channels, bias=bias)

    def initial(self, rows: int, like: Tensor) -> Tensor:
        """The state before the first token."""
        return like.new_zeros(rows, self.width - 1, self.channels)

    def state_bytes(self, element_size: int = 4) -> int:
        """Bytes of one row's state."""
        return (self.width - 1) * self.channels * element_size

    def forward(
        self, x: Tensor, state: Tensor | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """x [B, T, channels] to (y [B, T, channels], state); with cu_seqlens [N + 1], B = 1 and N rows of state."""
        if cu_seqlens is not None:
            return self._packed(x, state, cu_seqlens)
        state = self.initial(x.shape[0], x) if state is None else state
        if x.shape[1] == 0:
            return x, state
        extended = torch.cat((state.to(x.dtype), x), 1)
        # A copy: a view would keep all of the inputs alive with the state.
        return self._convolve(extended), extended[:, extended.shape[1] - self.width + 1 :].clone()

    def _convolve(self, extended: Tensor) -> Tensor:
        return F.silu(self.conv(extended.mT)).mT

    def _packed(self, x: Tensor, state: Tensor | None, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
        """Put every sequence's state in front of it, convolve all at once, and keep what belongs to real tokens."""
        T, N, past = x.shape[1], cu_seqlens.shape[0] - 1, self.width - 1
        cu_seqlens = cu_seqlens.to(x.device, torch.int64)
        state = self.initial(N, x) if state is None else state
        sequence = torch.searchsorted(cu_seqlens[1:], torch.arange(T, device=x.device), right=True)
        tokens = torch.arange(T, device=x.device) + (sequence + 1) * past
        row = torch.arange(N, device=x.device)[:, None]
        before = cu_seqlens[:-1, None] + row * past + torch.arange(past, device=x.device)  # [N, past]
        extended = x.new_zeros(T + N * past, self.channels)
        extended = extended.index_copy(0, tokens, x[0]).index_copy(0, before.flatten(), state.to(x.dtype).flatten(0, 1))
        y = self._convolve(F.pad(extended, (0, 0, past, 0))[None])[:, tokens]
        after = cu_seqlens[1:, None] + row * past + torch.arange(past, device=x.device)
        return y, extended[after]
