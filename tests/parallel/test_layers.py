"""Layers of every mechanism over ranks: in bfloat16 they are as close to float32 as on one process."""

import torch
import torch.distributed as dist

from tests.ranks import on_ranks
from varla.layers import MECHANISMS, build
from varla.parallel import Split

T = 45


def outcome(layer, x, split=None, dtype=None):
    """Outputs of these tokens, and the gradient of the keys' projection by all ranks together."""
    layer.zero_grad()
    with torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        y = layer(x, cu_seqlens=split)[0]
    y.float().square().sum().backward()
    gradient = layer.k.weight.grad.clone()
    if split is not None:
        dist.all_reduce(gradient)
    return y.detach().float(), gradient


def errors():
    """(on one process, over ranks), each (of the outputs, of the gradient), relative by norm; by mechanism."""

    def off(found, wanted):
        return [float((x - y).norm() / y.norm()) for x, y in zip(found, wanted, strict=True)]

    split, found = Split.even(dist.group.WORLD, T), {}
    for name in MECHANISMS:
        torch.manual_seed(0)
        layer, x = build(name, d_model=16, n_heads=2, conv=4), torch.randn(2, T, 16)
        exact, alone = outcome(layer, x), outcome(layer, x, dtype=torch.bfloat16)
        ranks = outcome(layer, split.own(x), split, torch.bfloat16)
        wanted = split.own(exact[0]), exact[1]
        found[name] = off((split.own(alone[0]), alone[1]), wanted), off(ranks, wanted)
    return found


def test_under_autocast():
    for rank in on_ranks(2, errors):
        for name, (alone, ranks) in rank.items():
            for one, two in zip(alone, ranks, strict=True):
                assert 1e-4 < two < max(1e-2, 1.5 * one), name
