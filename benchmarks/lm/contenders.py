"""The models to compare, their sizes, and the cost of the comparison."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

CHOOSING = 0  # the seed for choosing learning rates; its runs are not reported


@dataclass(frozen=True)
class Contender:
    """`layers` repeat over the model's depth. `speed`: expected training tokens per second on an H200."""

    layers: tuple[str, ...]
    speed: float
    options: Mapping[str, Mapping[str, Any]] | None = None

    def changes(self, depth: int) -> dict[str, Any]:
        """Changes that turn a preset of this depth into this contender."""
        mechanisms = [self.layers[i % len(self.layers)] for i in range(depth)]
        return {"mechanisms": mechanisms, "mechanism_options": {k: dict(v) for k, v in (self.options or {}).items()}}


CONTENDERS: dict[str, Contender] = {
    "softmax": Contender(("softmax",), 1.41e6),  # with rotary positions: the presets'
    "linear": Contender(("linear",), 1.57e6),
    "deltanet": Contender(("deltanet",), 1.40e6),
    "vla": Contender(("vla",), 0.99e6),
    "vla, A fixed": Contender(("vla",), 1.26e6, {"vla": {"update_penalty": False}}),
    "vla and softmax": Contender(("vla", "vla", "vla", "softmax"), 1.08e6),
}
# The second comparison, `--gated`: with gates, and with what it is held against. New speeds are guesses.
GATED_CONTENDERS: dict[str, Contender] = {
    "softmax": CONTENDERS["softmax"],
    "deltanet": CONTENDERS["deltanet"],
    "gated-deltanet": Contender(("gated-deltanet",), 1.3e6),
    "gated-vla": Contender(("gated-vla",), 0.9e6),
    "gated-vla, A fixed": Contender(("gated-vla",), 1.1e6, {"gated-vla": {"update_penalty": False}}),
}
DRAWN = {"u_init": "drawn"}
# For `--gated --only`: one seed of each, on fewer tokens. Twice as wide values: as many bytes of state as gated-vla.
BESIDE: dict[str, Contender] = {
    "vla": CONTENDERS["vla"],
    "mesa": Contender(("mesa",), 0.1e6),
    "gated-vla, no forgetting": Contender(("gated-vla",), 0.94e6, {"gated-vla": {"forget": False}}),
    "gated-vla, u drawn": Contender(("gated-vla",), 0.9e6, {"gated-vla": DRAWN}),
    "gated-vla, u drawn, no forgetting": Contender(("gated-vla",), 0.94e6, {"gated-vla": {**DRAWN, "forget": False}}),
    "gated-vla and softmax": Contender(("gated-vla", "gated-vla", "gated-vla", "softmax"), 1.0e6),
    "gated-deltanet, wide": Contender(("gated-deltanet",), 1.1e6, {"gated-deltanet": {"value_dim": 128}}),
}
EVERY = {**CONTENDERS, **GATED_CONTENDERS, **BESIDE}


@dataclass(frozen=True)
class Scale:
    """Sizes of the whole comparison.

    A step is `rows` rows of `context` tokens. A reported run trains on `tokens` tokens; a run that tries a learning
    rate, on `choice`, with a seed of its own. If both are equal, the first seed's runs try the rates.
    If the best of the `rates` is the smallest or largest, up to `beyond` more are tried on that side. Every one of
    `contexts` must divide the longest.
    """

    preset: str
    changes: Mapping[str, Any]
    depth: int
    rows: int
    context: int
    tokens: int
    choice: int
    rates: tuple[float, ...]
    beyond: int
    seeds: tuple[int, ...]
    contexts: tuple[int, ...]
    scored: int  # most validation tokens of a reported run
    tried: int  # most validation tokens for choosing a rate; they are of other documents

    @property
    def whole(self) -> bool:
        """Whether a run that tries a learning rate is as long as a reported one, and therefore is one."""
        return self.choice == self.tokens

    def steps(self, tokens: int) -> int:
        return max(1, tokens // (self.rows * self.context))


VOCABULARY = 256  # bytes; one of them ends a document
FULL = Scale(
    preset="30m", changes={}, depth=8, rows=32, context=2048, tokens=50_000_000, choice=15_000_000,
    rates=(5e-4, 1.5e-3, 4.5e-3), beyond=2, seeds=(1, 2), contexts=(512, 2048, 8192, 32768), scored=1_000_000,
    tried=250_000,
)  # fmt: skip
# Rates are tried at full length: softmax hardly learns to look back on fewer tokens.
GATED = replace(FULL, tokens=100_000_000, choice=100_000_000, rates=(1.5e-3, 4.5e-3), beyond=0, seeds=(1, 2, 3))
QUICK = Scale(
    preset="5m", changes={"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64},
    depth=4, rows=2, context=64, tokens=640, choice=256, rates=(1e-3, 3e-3, 1e-2), beyond=0,
    seeds=(1, 2), contexts=(32, 64, 2048), scored=4096, tried=256,
)  # fmt: skip


def flops(name: str, scale: Scale) -> float:
    """Approximate floating-point operations of training on one token: 6 per weight, plus those of the mixers.

    A mixer's forward, per head and token: softmax 2 T D (half of the T x T products). In chunks of C tokens: linear
    attention 4 C D + 4 D^2 (products within a chunk; writing and reading S), the delta rule 8 C D + 6 D^2 (also T^-1
    applied to keys and values), VLA 8 C D + 14 D^2 (also those of A). The backward takes twice as many.
    """
    from varla.models import PRESETS

    sizes = {**PRESETS[scale.preset], "vocab_size": VOCABULARY, **scale.changes}
    width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    D, C, T = int(width // heads), 64, scale.context
    own = {"softmax": 2 * T * D, "linear": 4 * C * D + 4 * D * D, "deltanet": 8 * C * D + 6 * D * D}
    own["vla"] = own["gated-vla"] = own["mesa"] = 8 * C * D + 14 * D * D
    own["gated-deltanet"] = own["deltanet"]
    layers = EVERY[name].changes(scale.depth)["mechanisms"]
    squares = sum(5 if layer.endswith("vla") else 4 for layer in layers)  # q, k, v, the output, and u
    weights = squares * width**2 + len(layers) * 3 * width * sizes["intermediate_size"]
    return float(6 * (weights + width * sizes["vocab_size"]) + 3 * heads * sum(own[layer] for layer in layers))


def seconds(name: str, tokens: int, speed: float | None = None) -> float:
    """Approximate time of a run on one H200: training, plus 12 s for start and scoring."""
    return tokens / (speed or EVERY[name].speed) + 12


def budget(
    scale: Scale, speeds: Mapping[str, float] | None = None, among: Mapping[str, Contender] = CONTENDERS
) -> list[list[str]]:
    """Rows of a table: contender, GFLOP per token, tokens/s, minutes of choosing, minutes of reported runs."""
    rows = []
    for name, contender in among.items():
        speed = (speeds or {}).get(name, contender.speed)
        choosing = len(scale.rates) * seconds(name, scale.choice, speed)
        reported = (len(scale.seeds) - scale.whole) * seconds(name, scale.tokens, speed)
        cells = [
            f"{flops(name, scale) / 1e9:.3f}",
            f"{speed / 1e6:.2f} M",
            f"{choosing / 60:.1f}",
            f"{reported / 60:.1f}",
        ]
        rows.append([name, *cells])
    return rows
