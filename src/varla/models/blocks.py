"""What a model is made of: embedding, SwiGLU, and the block of norms around a mixer and it."""

from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from varla.layers import LayerState, build
from varla.layers.norm import RMSNorm
from varla.models.configuration import VarlaConfig
from varla.ops.gate import gated


class VarlaEmbedding(nn.Embedding):
    """Vectors of tokens: `multiplier` times the weights. Those may be the output head's, too, and small for it."""

    def __init__(self, count: int, size: int, multiplier: float):
        """`count` tokens, vectors of this size."""
        super().__init__(count, size)
        self.multiplier = multiplier

    def forward(self, ids: Tensor) -> Tensor:
        """[*] to [*, size]."""
        return super().forward(ids) * self.multiplier


class VarlaMLP(nn.Module):
    """SwiGLU (Shazeer 2020): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: VarlaConfig):
        """Three matrices, no biases."""
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, hidden_size] to the same."""
        return self.down_proj(gated(self.gate_proj(x), self.up_proj(x)))  # type: ignore[no-any-return]


class VarlaBlock(GradientCheckpointingLayer):  # type: ignore[misc]
    """x + mixer(norm(x)), then x + feed-forward(norm(x)).

    A state goes in and a new one comes out: under gradient checkpointing it can be run again.
    """

    def __init__(self, config: VarlaConfig, mechanism: str):
        """One mixer and one feed-forward network."""
        super().__init__()
        self.mixer_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mixer = build(mechanism, **config.layer_options(mechanism))
        self.mlp_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = VarlaMLP(config)
        last: Any
        for last in (self.mixer.out, self.mlp.down_proj):
            last.ends_branch = True  # see VarlaPreTrainedModel._init_weights

    def forward(self, x: Tensor, state: LayerState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, LayerState]:
        """x [B, T, hidden_size] to (x [B, T, hidden_size], state)."""
        y, state = self.mixer(self.mixer_norm(x), state, cu_seqlens)
        x = x + y
        return x + self.mlp(self.mlp_norm(x)), state
