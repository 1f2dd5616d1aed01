"""What is compared, at which sizes, and what that costs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

CHOOSING = 0  # the seed that learning rates are chosen with; nothing of it is reported


@dataclass(frozen=True)
class Contender:
    """`layers` are repeated over the model's depth. `speed`: training tokens a second to expect of an H200."""

    layers: tuple[str, ...]
    speed: float
    options: Mapping[str, Mapping[str, Any]] | None = None

    def changes(self, depth: int) -> dict[str, Any]:
        """What makes a preset of this depth this contender's."""
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


@dataclass(frozen=True)
class Scale:
    """Sizes of the whole comparison.

    A step is `rows` rows of `context` tokens. `tokens` is what a reported run is trained on, `choice` what each
    learning rate is tried on; where the best of the `rates` is the first or last of them, up to `beyond` more are
    tried on that side. `contexts` must divide the longest of them.
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
    scored: int  # validation tokens, at the most
    tried: int  # the same, of other documents, to choose the rate on

    def steps(self, tokens: int) -> int:
        return max(1, tokens // (self.rows * self.context))


VOCABULARY = 256  # bytes; that which ends a document is one of them
FULL = Scale(
    preset="30m", changes={}, depth=8, rows=32, context=2048, tokens=50_000_000, choice=15_000_000,
    rates=(5e-4, 1.5e-3, 4.5e-3), beyond=2, seeds=(1, 2), contexts=(512, 2048, 8192, 32768), scored=1_000_000,
    tried=250_000,
)  # fmt: skip
QUICK = Scale(
    preset="5m", changes={"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64},
    depth=4, rows=2, context=64, tokens=640, choice=256, rates=(1e-3, 3e-3, 1e-2), beyond=0,
    seeds=(1, 2), contexts=(32, 64, 2048), scored=4096, tried=256,
)  # fmt: skip


def flops(name: str, scale: Scale) -> float:
    """Floating-point operations of training on a token, about: 6 for every weight, and the mixers' own.

    The latter by head and token, forward: softmax 2 T D (half of the T x T products); in chunks of C tokens, linear
    attention 4 C D + 4 D^2 (the products within a chunk; S written and read), the delta rule 8 C D + 6 D^2 (and T^-1
    applied to keys and values), VLA 8 C D + 14 D^2 (and A's own). Backward twice that.
    """
    from varla.models import PRESETS

    sizes = {**PRESETS[scale.preset], "vocab_size": VOCABULARY, **scale.changes}
    width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    D, C, T = int(width // heads), 64, scale.context
    own = {"softmax": 2 * T * D, "linear": 4 * C * D + 4 * D * D, "deltanet": 8 * C * D + 6 * D * D}
    own["vla"] = 8 * C * D + 14 * D * D
    layers = CONTENDERS[name].changes(scale.depth)["mechanisms"]
    weights = sum((5 if layer == "vla" else 4) * width**2 + 3 * width * sizes["intermediate_size"] for layer in layers)
    return float(6 * (weights + width * sizes["vocab_size"]) + 3 * heads * sum(own[layer] for layer in layers))


def seconds(name: str, tokens: int, speed: float | None = None) -> float:
    """What a run on so many tokens takes on one H200, about: training, and 12 s to begin and to be scored."""
    return tokens / (speed or CONTENDERS[name].speed) + 12


def budget(scale: Scale, speeds: Mapping[str, float] | None = None) -> list[list[str]]:
    """Rows of a table: contender, GFLOP a token, tokens/s, minutes of choosing, of the reported runs."""
    rows = []
    for name, contender in CONTENDERS.items():
        speed = (speeds or {}).get(name, contender.speed)
        choosing = len(scale.rates) * seconds(name, scale.choice, speed)
        reported = len(scale.seeds) * seconds(name, scale.tokens, speed)
        cells = [
            f"{flops(name, scale) / 1e9:.3f}",
            f"{speed / 1e6:.2f} M",
            f"{choosing / 60:.1f}",
            f"{reported / 60:.1f}",
        ]
        rows.append([name, *cells])
    return rows
