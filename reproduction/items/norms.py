"""Norms of a model's memory while it reads random tokens, any number of them."""

import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reproduction.protocol import CHANNEL
from varla.backbone import Backbone, backbone_config
from varla.layers import LayerState
from varla.runs.metrics import EVAL
from varla.training import Run, build_model, checkpoint, from_dict, train

TOKENS = 1000  # the length of the paper's figure


def untrained(mechanism: str, seed: int, T: int) -> dict[str, Any]:
    """Norms in the last layer of an untrained model (preset `paper`) that reads random tokens."""
    layer = CHANNEL if mechanism == "deltanet-paper" else {}
    return norms(Backbone(backbone_config("paper", mechanism, layer=layer), seed=seed), seed, T)


def trained(steps: int, lr: float, seed: int, T: int) -> dict[str, Any]:
    """The same norms in VLA after training on recall of 8 pairs, and its accuracy."""
    model, accuracy = trained_model(steps, lr, seed)
    return {"accuracy": accuracy, **norms(model, seed, T)}


def value_lengths(steps: int, lr: float, seed: int, T: int) -> dict[str, float]:
    """The mean length of the last layer's values, untrained and trained. S is a sum of values and scales with them."""
    untrained = Backbone(backbone_config("paper", "vla"), seed=seed)
    model, _ = trained_model(steps, lr, seed)
    return {"untrained": value_length(untrained, seed, T), "trained": value_length(model, seed, T)}


@torch.no_grad()
def value_length(model: Backbone, seed: int, T: int) -> float:
    """The mean length of the last layer's values over T random tokens."""
    tokens = torch.randint(0, model.config.vocab_size - 1, (1, T), generator=torch.Generator().manual_seed(seed))
    x = embedded(model, tokens, 0)
    for block in model.blocks[:-1]:
        x, _ = block(x, None, None)
    last = model.blocks[-1]
    v = last.mixer.heads(last.mixer.v(last.mixer_norm(x)))  # type: ignore[union-attr, operator]
    return float(v.norm(dim=-1).mean())


def trained_model(steps: int, lr: float, seed: int) -> tuple[Backbone, float]:
    """VLA after training on recall of 8 pairs, and its accuracy."""
    config = from_dict(
        {
            "mechanism": "vla",
            "seed": seed,
            "task": {"name": "mqar", "n": 8},
            "train": {"steps": steps, "lr": lr, "eval_every": steps, "checkpoint_every": steps},
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        record = train(config, folder, device="cpu")
        newest = checkpoint.latest(Run(Path(folder)).checkpoints)
        if newest is None:
            raise RuntimeError("training left no checkpoint")
        model = build_model(config)
        checkpoint.load_weights(newest, model)
    return model, record["final"][EVAL]


@torch.no_grad()
def norms(model: Backbone, seed: int, T: int) -> dict[str, Any]:
    """{"t": tokens read, "|S|": ..., "|A|": ...} in the last layer, means over heads, at about 60 lengths."""
    tokens = torch.randint(0, model.config.vocab_size - 1, (1, T), generator=torch.Generator().manual_seed(seed))
    found: dict[str, list[float]] = {"t": []}
    for t, readings in stream(model, tokens, marks(T)):
        found["t"].append(t)
        for name, value in readings.items():
            found.setdefault(name, []).append(float(value.mean()))
    return found


def embedded(model: Backbone, tokens: Tensor, start: int) -> Tensor:
    """Embeddings of tokens [1, T] at the positions from `start` on: [1, T, d_model].

    Learned positions start again after max_len, while the memory continues. Up to max_len tokens, these are the
    model's own embeddings.
    """
    x: Tensor = model.embedding(tokens)
    if model.positions is not None:
        x = x + model.positions(torch.arange(start, start + tokens.shape[1]) % model.config.max_len)
    return x


def stream(model: Backbone, tokens: Tensor, ends: Sequence[int]) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Read tokens [1, T] in pieces that end at `ends`; after each, yield the last layer's readings, [1, H] each."""
    states: list[LayerState | None] = [None] * len(model.blocks)
    for start, end in zip((0, *ends), ends, strict=False):
        x = mixed = embedded(model, tokens[:, start:end], start)
        for i, block in enumerate(model.blocks):
            mixed = x
            x, states[i] = block(x, states[i], None)
        state, last = states[-1], model.blocks[-1]
        if state is None:
            raise ValueError("the model has no layers")
        key = last.mixer.heads(last.mixer.k(last.mixer_norm(mixed)))[:, -1]  # type: ignore[union-attr, operator]
        yield end, last.mixer.readings(state.memory, key)  # type: ignore[union-attr, operator]


def marks(T: int) -> list[int]:
    """The lengths to measure at: every 25 up to 1000, then about ten per factor of ten, in thousands."""
    dense = [1, *range(25, min(T, TOKENS) + 1, 25)]
    sparse = {
        round(10 ** (3 + i / 10) / TOKENS) * TOKENS for i in range(1, 1 + max(0, round(10 * math.log10(T / 1000))))
    }
    return sorted({*dense, *(t for t in sparse if t <= T), T})
