"""The lab's decoder, in which mechanisms are compared: pre-norm blocks of mixer and GELU feed-forward, tied head.

    logits, state = Backbone(config)(tokens)          tokens [B, T] int64, logits [B, T, vocab_size]

What differs between experiments is data (`varla.backbone.presets`), not code.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from varla.arguments import check_choice, check_count
from varla.backbone.block import Block
from varla.layers import ModelState, build
from varla.layers.gates import CopiedLinear
from varla.layers.norm import make_norm
from varla.layers.softmax import positions
from varla.ops.packing import check_packing

POSITIONS = ("learned", "none")
INITIALISATIONS = ("normal", "default", "tied")


@dataclass(frozen=True)
class BackboneConfig:
    """All settings of a backbone. `layer` holds the mechanism's options; `max_len` bounds learned positions.

    `initialisation`: "normal" draws all linear and embedding weights from N(0, 0.02), with zero biases. "default" is
    PyTorch's own: embeddings are N(0, 1), and with the tied head the first loss is near 100. "tied" is PyTorch's own,
    except that embeddings are N(0, 0.02).
    """

    mechanism: str = "vla"
    vocab_size: int = 128
    d_model: int = 128
    n_layers: int = 2
    n_heads: int = 4
    ffn: int = 256
    positions: str = "learned"
    max_len: int = 1024
    initialisation: str = "normal"
    layer: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check all values except the mechanism and its options, which `varla.layers.build` checks."""
        for name in ("vocab_size", "d_model", "n_layers", "n_heads", "ffn", "max_len"):
            check_count(name, getattr(self, name))
        check_choice("positions", self.positions, POSITIONS)
        check_choice("initialisation", self.initialisation, INITIALISATIONS)


class Backbone(nn.Module):
    """Token embedding, optional learned positions, blocks, final norm, and the embedding's weights as output head."""

    def __init__(self, config: BackboneConfig, seed: int = 0):
        """Two backbones of one seed have equal weights in all modules that they share, whatever the mechanism."""
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions = nn.Embedding(config.max_len, config.d_model) if config.positions == "learned" else None
        self.blocks = nn.ModuleList(self._block() for _ in range(config.n_layers))
        self.norm = make_norm("layer", config.d_model)
        initialise(self, config.initialisation, seed)

    def _block(self) -> Block:
        c = self.config
        mixer = build(c.mechanism, d_model=c.d_model, n_heads=c.n_heads, **c.layer)
        feed_forward = nn.Sequential(nn.Linear(c.d_model, c.ffn), nn.GELU(), nn.Linear(c.ffn, c.d_model))
        return Block(mixer, feed_forward, lambda: make_norm("layer", c.d_model))

    def forward(
        self, tokens: Tensor, state: ModelState | None = None, cu_seqlens: Tensor | None = None
    ) -> tuple[Tensor, ModelState]:
        """tokens [B, T] to (logits [B, T, vocab_size], state). With cu_seqlens, B = 1 and the state has N rows."""
        x, t = self._embed(tokens, state, cu_seqlens)
        layers = []
        for i, block in enumerate(self.blocks):
            x, after = block(x, None if state is None else state.layers[i], cu_seqlens)
            layers.append(after)
        return self.norm(x) @ self.embedding.weight.mT, ModelState(layers, t)

    def _embed(self, tokens: Tensor, state: ModelState | None, cu_seqlens: Tensor | None) -> tuple[Tensor, Tensor]:
        """(embeddings [B, T, d_model], tokens seen including these [rows])."""
        if tokens.dim() != 2 or tokens.is_floating_point():
            raise ValueError(f"tokens must be integers of shape [B, T], got {tokens.dtype} {list(tokens.shape)}")
        B, T = tokens.shape
        check_packing(cu_seqlens, B, T, tokens.device)
        rows = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
        seen = torch.zeros(rows, dtype=torch.int64, device=tokens.device) if state is None else state.t
        after = seen + (T if cu_seqlens is None else cu_seqlens.diff().to(tokens.device))
        x = self.embedding(tokens)
        if self.positions is not None:
            longest = T if state is None and cu_seqlens is None else int(after.max())
            if longest > self.config.max_len:
                raise ValueError(f"learned positions end at max_len = {self.config.max_len}, got {longest} tokens")
            x = x + self.positions(positions(seen, T, cu_seqlens))
        return x, after

    def state_size(self, T: int) -> int:
        """Bytes of one sequence's state after T tokens, in float32."""
        return sum(block.mixer.state_size(T) for block in self.blocks) + 8  # type: ignore[union-attr, operator]

    @torch.no_grad()
    def watch(self, tokens: Tensor) -> list[dict[str, Tensor]]:
        """The readings of each layer after every token, each [B, T, H]; see `Layer.watch`."""
        x, _ = self._embed(tokens, None, None)
        readings = []
        for block in self.blocks:
            readings.append(block.mixer.watch(block.mixer_norm(x)))  # type: ignore[union-attr, operator]
            x, _ = block(x, None, None)
        return readings


def initialise(model: nn.Module, scheme: str, seed: int) -> None:
    """Draw each module's parameters from a generator seeded by its name: other modules do not change them."""
    for name, module in model.named_modules():
        if next(module.parameters(recurse=False), None) is None:
            continue
        digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=7).digest()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int.from_bytes(digest, "big"))
            module.reset_parameters()
            if isinstance(module, nn.Embedding) and scheme != "default":
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and not isinstance(module, CopiedLinear) and scheme == "normal":
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
