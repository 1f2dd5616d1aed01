"""Small models of every kind, seeded tokens, padded and packed batches, and their forward one token after another."""

import torch

from varla.layers import MECHANISMS
from varla.models import VarlaConfig, VarlaForCausalLM

HYBRID = ["vla", "softmax", "vla"]
KINDS = {**{name: {"mechanisms": name} for name in sorted(MECHANISMS)}, "hybrid": {"mechanisms": HYBRID}}
VOCABULARY = 50


def config(**changes):
    """Three layers of width 24. Weights are drawn wide, so that logits differ from one another."""
    sizes = {
        "vocab_size": VOCABULARY,
        "hidden_size": 24,
        "num_hidden_layers": 3,
        "num_attention_heads": 3,
        "intermediate_size": 32,
        "initializer_range": 0.3,
    }
    return VarlaConfig(**{**sizes, **changes})


def model(kind="vla", dtype=torch.float32, seed=0, **changes):
    torch.manual_seed(seed)
    return VarlaForCausalLM(config(**{**KINDS[kind], **changes})).to(dtype).eval()


def tokens(B, T, seed=1):
    return torch.randint(VOCABULARY, (B, T), generator=torch.Generator().manual_seed(seed))


SIDES = ("left", "right", "within")


def padded(lengths, side, seed=1):
    """(input_ids, attention_mask) with rows of these lengths; what stands in the padding is random, too."""
    T = max(lengths)
    before = {"left": lambda n: T - n, "right": lambda n: 0, "within": lambda n: (T - n) // 2}[side]
    mask = torch.zeros(len(lengths), T, dtype=torch.int64)
    for row, n in zip(mask, lengths, strict=True):
        row[before(n) : before(n) + n] = 1
        if side == "within" and n > 2 and n < T:  # a hole, too
            row[before(n) + 1], row[before(n) + n] = 0, 1
    return tokens(len(lengths), T, seed), mask


def decode(net, ids, cache):
    """Logits of ids [B, T], one token after another, from where the cache is."""
    return torch.cat([net(ids[:, t : t + 1], past_key_values=cache).logits for t in range(ids.shape[1])], 1)
