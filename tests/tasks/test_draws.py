"""The draws have the laws that they claim. Seeds are fixed and bounds are five standard errors or more."""

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch

from tests.tasks.readers import generator
from varla import tasks
from varla.tasks.draws import distinct, uniform, weighted_distinct


def assert_frequencies(outcomes, law):
    """Compare how often each outcome came with its probability; `law` maps every possible outcome to it."""
    outcomes = list(outcomes)
    counts = Counter(outcomes)
    assert set(counts) <= set(law)
    assert math.isclose(sum(law.values()), 1)
    for outcome, p in law.items():
        spread = math.sqrt(p * (1 - p) * len(outcomes))
        assert abs(counts[outcome] - p * len(outcomes)) <= 5 * spread, outcome


def even(outcomes):
    outcomes = list(outcomes)
    return dict.fromkeys(outcomes, 1 / len(outcomes))


def race(weights, count):
    """The law of ordered draws without replacement, enumerated: each next one in proportion to what is left."""
    law = {}
    for order in itertools.permutations(range(len(weights)), count):
        p, left = 1.0, sum(weights)
        for i in order:
            p *= weights[i] / left
            left -= weights[i]
        law[order] = p
    return law


def rows(x):
    return map(tuple, x.tolist())


def test_uniform_is_even_over_all_tuples():
    drawn = uniform(30_000, 2, range(5, 8), generator())
    assert_frequencies(rows(drawn), even(itertools.product(range(5, 8), repeat=2)))


def test_distinct_is_even_over_all_ordered_choices():
    drawn = distinct(30_000, 3, range(2, 6), generator())
    assert_frequencies(rows(drawn), even(itertools.permutations(range(2, 6), 3)))


def test_distinct_favours_no_token_of_a_large_range():
    """Ties among too few random bits would be broken by place."""
    drawn = distinct(2000, 4, range(8192), generator())
    size = 8192
    assert drawn.double().mean().item() == pytest.approx((size - 1) / 2, abs=5 * size / math.sqrt(12 * drawn.numel()))
    halves = (drawn < size // 2).sum().item()
    assert abs(halves - drawn.numel() / 2) <= 5 * math.sqrt(drawn.numel()) / 2


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [8, 4, 2, 1], [0.001, 5, 5, 20]])
@pytest.mark.parametrize("count", [1, 3, 4])
def test_weighted_distinct_has_the_law_of_successive_draws(weights, count):
    drawn = weighted_distinct(30_000, count, torch.tensor(weights, dtype=torch.float64).log(), generator())
    assert_frequencies(rows(drawn), race(weights, count))


@pytest.mark.parametrize("power", [0.01, 1.0, 3.0])
def test_zoology_slots_have_the_law_of_its_weights(power):
    n, slots = 3, 5
    inputs, _ = tasks.make("mqar-zoology", n=n, seq_len=2 * (n + slots), vocab_size=64, power=power).batch(
        30_000, generator=generator()
    )
    # The slot that the key of each pair is asked for in, read from the tokens.
    after = inputs[:, 2 * n :: 2]
    place = (after[:, None, :] == inputs[:, 0 : 2 * n : 2, None]).int().argmax(-1)
    law = race([i ** (power - 1) for i in range(1, slots + 1)], n)
    assert_frequencies(rows(place), law)
    for j in range(n):
        exact = sum(p * order[j] for order, p in law.items())
        assert place[:, j].double().mean().item() == pytest.approx(exact, abs=5 * slots / 2 / 30_000**0.5)


def test_zoology_at_its_published_size_against_numpy():
    """A second sampler, one row at a time, agrees on where queries stand on average and how near they crowd."""
    n, length, count = 16, 256, 1500
    inputs, labels = tasks.make("mqar-zoology", n=n, seq_len=length).batch(count, generator=generator())
    slots = (length - 2 * n) // 2
    p = np.arange(1, slots + 1) ** (0.01 - 1)
    rng = np.random.default_rng(0)
    other = np.stack([rng.choice(slots, size=n, replace=False, p=p / p.sum()) for _ in range(count)])
    place = (labels != -100).nonzero()[:, 1].sub(2 * n).div(2)
    assert place.mean().item() == pytest.approx(other.mean(), rel=0.03)
    assert (place < 8).double().mean().item() == pytest.approx((other < 8).mean(), rel=0.05)
    assert (inputs[:, 2 * n :] != 0).sum().item() == n * count


def test_a_power_whose_weights_overflow_still_orders_the_slots():
    inputs, labels = tasks.make("mqar-zoology", n=3, seq_len=2006, vocab_size=64, power=1e5).batch(4, generator())
    assert (inputs[:, [2004, 2002, 2000]] == inputs[:, 0:6:2]).all()
    assert (labels[:, [2004, 2002, 2000]] == inputs[:, 1:6:2]).all()


def test_mqar_keys_and_values_are_independent_and_even():
    inputs, _ = tasks.make("mqar", n=2, vocab_size=4).batch(30_000, generator=generator())
    law = even((a, x, b, y) for a, x, b, y in itertools.product(range(3), repeat=4) if a != b)
    assert_frequencies(rows(inputs[:, :4]), law)


def test_mqar_queries_are_drawn_with_replacement():
    inputs, _ = tasks.make("mqar", n=3, vocab_size=16).batch(30_000, generator=generator())
    which = (inputs[:, 7:, None] == inputs[:, None, 0:6:2]).int().argmax(-1)
    assert_frequencies(rows(which), even(itertools.product(range(3), repeat=3)))


def test_noisy_recall_queries_are_a_uniform_shuffle():
    inputs, _ = tasks.make("noisy-recall", n=3, seq_len=20).batch(30_000, generator=generator())
    which = (inputs[:, -3:, None] == inputs[:, None, 0:6:2]).int().argmax(-1)
    assert_frequencies(rows(which), even(itertools.permutations(range(3))))


def test_copy_content_is_even():
    inputs, _ = tasks.make("copy", seq_len=4, vocab_size=4).batch(30_000, generator=generator())
    assert_frequencies(rows(inputs[:, :2]), even(itertools.product(range(3), repeat=2)))
