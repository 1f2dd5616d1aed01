"""The parts of a decoder: the block of mixer and feed-forward network, SwiGLU, a scaled embedding.

The lab's decoder (`varla.backbone.model`) and the models for transformers (`varla.models`) use the same block.
"""

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from varla.layers import Layer, LayerState
from varla.layers.base import Recorder
from varla.ops.gate import gated
from varla.ops.split import Packing


class Block(nn.Module):
    """x + mixer(norm(x)), then x + feed-forward(norm(x)).

    A state goes in and a new one comes out, so that gradient checkpointing can run a block again.
    """

    # The names of the feed-forward network and its norm. Saved weights have them, and the lab derives seeds from them.
    FEED_FORWARD: ClassVar[tuple[str, str]] = ("ffn", "ffn_norm")

    def __init__(self, mixer: Layer, feed_forward: nn.Module, norm: Callable[[], nn.Module]):
        """`norm` makes a norm; there is one before the mixer and one before the feed-forward network."""
        super().__init__()
        name, norm_name = self.FEED_FORWARD
        self.mixer_norm = norm()
        self.mixer = mixer
        self.add_module(norm_name, norm())
        self.add_module(name, feed_forward)

    def forward(
        self,
        x: Tensor,
        state: LayerState | None,
        cu_seqlens: Packing,
        record: Recorder | None = None,
    ) -> tuple[Tensor, LayerState]:
        """x [B, T, d_model] to (x [B, T, d_model], state). `record` is for the mixer, see `Layer`."""
        y, state = self.mixer(self.mixer_norm(x), state, cu_seqlens, record=record)
        x = x + y
        feed_forward, norm = (getattr(self, name) for name in self.FEED_FORWARD)
        return x + feed_forward(norm(x)), state


class SwiGLU(nn.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x)), without biases."""

    def __init__(self, d_model: int, ffn: int):
        """`ffn` is the width between the matrices."""
        super().__init__()
        self.gate_proj = nn.Linear(d_model, ffn, bias=False)
        self.up_proj = nn.Linear(d_model, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, d_model] to the same."""
        return self.down_proj(gated(self.gate_proj(x), self.up_proj(x)))


class ScaledEmbedding(nn.Embedding):
    """Embeddings times a constant: the weights are small where the output head shares them."""

    def __init__(self, count: int, size: int, multiplier: float):
        """`count` tokens, vectors of this size."""
        super().__init__(count, size)
        self.multiplier = multiplier

    def forward(self, ids: Tensor) -> Tensor:
        """[*] to [*, size]."""
        return super().forward(ids) * self.multiplier
