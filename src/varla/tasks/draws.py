"""Random draws as whole tensors, on the device of the generator.

Nothing is drawn and then rejected, so that what a batch takes from the generator does not depend on the values.
Ranks are taken of float64 numbers: among float32 ones, which have 24 random bits, ties would favour some tokens.
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
    # The places of the largest of independent random numbers are a uniform draw without replacement.
    ranks = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return ranks.topk(count, dim=1).indices + tokens.start


def weighted_distinct(batch_size: int, count: int, log_weights: Tensor, generator: torch.Generator) -> Tensor:
    """Draw [B, count] int64 indices without replacement, the next one always in proportion to the weights left.

    `log_weights` is [N]. An exponential race: index i arrives at a time of rate w_i, so the first is i with
    probability w_i / sum(w), and what follows is the same race without it. Columns are in order of arrival.
    Times are compared as logarithms, in which no weight under- or overflows.
    """
    times = torch.empty(batch_size, len(log_weights), dtype=torch.float64, device=generator.device)
    times.exponential_(generator=generator)
    return (times.log() - log_weights).topk(count, dim=1, largest=False).indices
