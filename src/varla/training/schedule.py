"""Learning rate: linear warm-up, then a cosine to zero. A function of the step alone: there is no state to resume."""

import math

from varla.training.config import TrainConfig


def learning_rate(step: int, train: TrainConfig) -> float:
    """The rate for step number `step`, counted from 0."""
    warmup = round(train.warmup * train.steps)
    if step < warmup:
        return train.lr * (step + 1) / warmup
    done = (step - warmup) / max(1, train.steps - warmup)
    return train.lr * 0.5 * (1 + math.cos(math.pi * done))
