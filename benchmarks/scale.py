"""What long sequences and large models would take on many GPUs: `python -m benchmarks.scale [draw]`.

Nothing here was run. The times of the operator are measured on one GPU (results/gpu.json); bandwidths and the rate of
matrix products are stated below. `draw` writes the table into docs/scale.md.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import measure

DOCS = Path(__file__).parents[1] / "docs/scale.md"
COMMAND = "python -m benchmarks.scale draw"
SHAPE = "D=128 B=1 T=32768"  # the measured one, with 16 heads
MEASURED = (32768, 16)  # its tokens and heads

PRODUCTS = 0.5 * 788e12  # operations/s in bfloat16: half of what one large product reaches on an H200 here
NETWORK = 50e9  # bytes/s each way for a GPU: 400 Gbit/s
STATE_BYTES = 16  # of a parameter: weight, gradient and Adam's two moments in float32
WIDTH = 3  # inputs that the short convolution keeps


@dataclass(frozen=True)
class Plan:
    """A model of Gated VLA, a mesh, and the rows of a context group in a step."""

    name: str
    preset: str
    changes: Mapping[str, int]
    data: int
    shard: int
    context: int
    tokens: int  # of a row
    rows: int

    @property
    def gpus(self) -> int:
        return self.data * self.shard * self.context

    @property
    def own(self) -> float:
        """Tokens of a GPU in a step."""
        return self.rows * self.tokens / self.context


WIDE = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}
PLANS = (
    Plan("1M tokens, 1.3B", "1.3b", {}, data=1, shard=1, context=64, tokens=2**20, rows=1),
    Plan("1M tokens, 1.3B", "1.3b", {}, data=1, shard=4, context=16, tokens=2**20, rows=1),
    Plan("8k tokens, 7B", "1.3b", WIDE, data=4, shard=64, context=1, tokens=8192, rows=2),
    Plan("128k tokens, 7B", "1.3b", WIDE, data=4, shard=8, context=8, tokens=2**17, rows=1),
)


@dataclass(frozen=True)
class Cost:
    """Of a step on one GPU: seconds, bytes sent, bytes of memory."""

    parameters: int
    products: float
    operators: float
    pieces: float
    ranks: float
    shards: float
    state: float
    kept: float
    layer: float

    @property
    def seconds(self) -> float:
        """The exchange of weights runs beside the computation; that of states does not."""
        computed = self.products + self.operators + self.pieces
        return max(computed, self.shards / NETWORK) + self.ranks / NETWORK


def measured() -> dict[str, Any]:
    """The operator as the layer calls it, in bfloat16."""
    results = json.loads((measure.RESULTS / "gpu.json").read_text())
    ((_, rows),) = (each for each in results["sections"]["gated"]["tables"].items() if each[0].startswith("bf16"))
    found: dict[str, Any] = next(r for r in rows if (r["shape"], r["form"]) == (SHAPE, "gated vla, forgetting"))
    return found


def cost(plan: Plan) -> Cost:
    """Every layer is computed again in the backward (gradient checkpointing): that is one more forward."""
    from varla.models import VarlaForCausalLM, preset

    with torch.device("meta"):
        model = VarlaForCausalLM(preset(plan.preset, mechanisms="gated-vla", **plan.changes))
    N, config, ranks, own = sum(p.numel() for p in model.parameters()), model.config, plan.context, plan.own
    L, H, d = config.num_hidden_layers, config.num_attention_heads, config.hidden_size
    D = d // H
    one = measured()
    token = {way: one[f"{way} ms"] / 1000 / (MEASURED[0] * MEASURED[1]) for way in ("forward", "both")}
    operators = L * H * own * (token["both"] + token["forward"])
    state = H * (D * D + D * D + 1 + 2 * D * D + 3) + WIDTH * d  # numbers of S, A and the convolution: docs/scale.md
    # A rank receives the others' maps, forward and again; the backward sums their gradients: twice as much.
    exchanged = 4.0 * state * (ranks - 1) * L * plan.rows * (2 + 2)
    shards = plan.shard * ranks
    # Weights in bfloat16 for the forward, its repetition and the backward; gradients in float32; copies sum theirs.
    weights = (3 * 2 + 4) * N * (shards - 1) / shards + 2 * 4 * N / shards * (plan.data - 1) / plan.data
    buffers = 1e6 * one["beyond inputs MB"] / (MEASURED[0] * MEASURED[1]) * H * own * (3 if ranks > 1 else 1)
    beside = 2 * (3 * config.intermediate_size + 10 * d) * own  # what else a layer holds, in bfloat16
    return Cost(
        parameters=N,
        products=8 * N * own / PRODUCTS,
        operators=operators,
        pieces=2 * operators if ranks > 1 else 0.0,  # at most: one more pass, with twice as many values
        ranks=exchanged,
        shards=weights,
        state=STATE_BYTES * N / shards,
        kept=4 * L * d * own,  # the input of every layer
        layer=max(buffers + beside, 2 * 4 * config.vocab_size * own),  # of one layer, or the logits and their gradient
    )


def rows(plans: Sequence[Plan] = PLANS) -> list[list[str]]:
    """The table, its header first."""
    found = [
        ["plan", "GPUs: data x shard x context", "products s", "operator s", "pieces s", "states GB", "weights GB",
         "step s", "tokens/s", "memory GB"],
    ]  # fmt: skip
    for plan in plans:
        c = cost(plan)
        all_tokens = plan.own * plan.gpus
        found.append(
            [
                plan.name, f"{plan.gpus}: {plan.data} x {plan.shard} x {plan.context}", f"{c.products:.2f}",
                f"{c.operators:.2f}", f"{c.pieces:.2f}", f"{c.ranks / 1e9:.1f}", f"{c.shards / 1e9:.1f}",
                f"{c.seconds:.2f}", f"{all_tokens / c.seconds / 1e6:.2f} M",
                f"{(c.state + c.kept + c.layer) / 1e9:.0f}",
            ]
        )  # fmt: skip
    return found


def page() -> str:
    """docs/scale.md with the present table."""
    header, *others = rows()
    lines = [header, ["---"] * len(header), *others]
    return measure.drawn(DOCS.read_text(), COMMAND, "\n".join("| " + " | ".join(cells) + " |" for cells in lines))


def main(arguments: Sequence[str]) -> int:
    if list(arguments) == ["draw"]:
        DOCS.write_text(page())
    elif arguments:
        print(f"error: {' '.join(arguments)} is not known: give draw, or nothing", file=sys.stderr)
        return 2
    header, *others = rows()
    print(measure.table(header, others))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
