"""Random draws as whole tensors, on the generator's device.

Nothing is drawn and then rejected, so the amount taken from the generator does not depend on the values. Ranks use
float64: float32 has 24 random bits, and ties would favour some tokens.
"""

import torch
from torch import Tensor


def uniform(batch_size: int, count: int, tokens: range, generator: torch.Generator) -> Tensor:
    """Draw [B, count] int64 tokens with replacement, every token of the range equally likely."""
    shape = (batch_size, count)
    return torch.randint(tokens.start, tokens.stop, shape, generator=generator, device=generator.device)


def distinct(batch_size: int, count: int, tokens: range, generator: torch.Generator) -> Tensor:
    """Draw [B, count] int64 tokens without replacement within a row, in random order, all equally likely."""
    shape = (batch_size, len(tokens))
    # The positions of the largest of independent random numbers are a uniform draw without replacement.
    ranks = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return ranks.topk(count, dim=1).indices + tokens.start


def weighted_distinct(batch_size: int, count: int, log_weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw [B, count] int64 indices without replacement, each in proportion to the remaining weights.

    `log_weights` is [N]. This is an exponential race: index i arrives after an exponential time of rate w_i. The first
    to arrive is i with probability w_i / sum(w); the rest is the same race without it. Columns are in order of
    arrival. Times are compared as logarithms, so that no weight under- or overflows.
    """
    times = torch.empty(batch_size, len(log_weights), dtype=torch.float64, device=generator.device)
    times.exponential_(generator=generator)
    return (times.log() - log_weights).topk(count, dim=1, largest=False).indices
