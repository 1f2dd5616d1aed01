"""What is drawn from: temperature, the k likeliest, the fewest with probability p together."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from varla.session.sampling import Sampling

LOGITS = torch.tensor([0.5, 2.0, -1.0, 1.0])
ORDER = [1, 3, 0, 2]


def test_temperature_divides_the_logits_and_0_takes_the_likeliest():
    assert torch.allclose(Sampling(2.0).probabilities(LOGITS), (LOGITS.double() / 2).softmax(0))
    assert Sampling(0).probabilities(LOGITS).tolist() == [0, 1, 0, 0]
    assert Sampling(0).draw(LOGITS, None) == 1
    assert Sampling(1e-300).probabilities(LOGITS).tolist() == [0, 1, 0, 0]


def test_top_k_keeps_so_many_even_of_equals():
    assert (Sampling(top_k=2).probabilities(LOGITS) > 0).nonzero()[:, 0].tolist() == [1, 3]
    assert (Sampling(top_k=2).probabilities(torch.zeros(5)) > 0).sum() == 2
    assert torch.equal(Sampling(top_k=9).probabilities(LOGITS), Sampling().probabilities(LOGITS))


def test_top_p_keeps_the_fewest_that_reach_it():
    p = Sampling().probabilities(LOGITS)[ORDER]
    for share in (1e-9, 0.3, 0.7, 0.9, 1.0):
        kept = int((p.cumsum(0) < share - 1e-12).sum()) + 1
        found = (Sampling(top_p=share).probabilities(LOGITS) > 0).nonzero()[:, 0].tolist()
        assert found == sorted(ORDER[:kept])


@given(st.integers(1, 8), st.floats(0.01, 1.0), st.floats(0.05, 5.0), st.integers(0, 99))
def test_what_is_left_is_a_distribution_and_draws_are_from_it(k, share, temperature, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(8, generator=generator) * 3
    sampling = Sampling(temperature, k, share)
    p = sampling.probabilities(logits)
    assert abs(float(p.sum()) - 1) < 1e-9
    assert p.argmax() == logits.argmax()
    assert p[sampling.draw(logits, generator)] > 0
