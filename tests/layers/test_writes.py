"""What a layer says that it writes is what it writes: the recurrence run from it gives the layer's own states."""

import numpy as np
import pytest
import torch

from tests.layers.replay import states
from tests.layers.test_layers import OWN
from tests.ops.cases import randn
from varla.layers import MECHANISMS, build

RECURRENT = sorted(set(MECHANISMS) - {"softmax"})
MORE = {
    "gated-vla": [{"beat": 7}, {"beat": 7, "gain": "raw"}],
    "vla": [{"refresh_every": 7, "refresh": 0.1}, {"normalize_key": False}, {"penalty_scale": 1.0, "gain": "raw"}],
}
OPTIONS = [(name, each) for name in RECURRENT for each in ({}, *OWN.get(name, []), *MORE.get(name, []))]
T = 45


def make(name, options):
    """A layer in float64 with D = 6 and Dv = 10, and its input."""
    torch.manual_seed(0)
    layer = build(name, d_model=24, n_heads=3, head_dim=6, value_dim=10, conv=3, **options).double()
    return layer, randn(1, T, 24, seed=1)


def own_states(layer, x):
    """The layer's own state after every token."""
    found, state = [], None
    for t in range(x.shape[1]):
        _, state = layer(x[:, t : t + 1], state)
        found.append({name: tensor.detach()[0] for name, tensor in state.memory.tensors().items()})
    return found


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_the_recurrence_from_the_writes_gives_the_layers_states(name, options):
    layer, x = make(name, options)
    own, writes = own_states(layer, x), layer.writes(x)
    for h in range(3):
        for wanted, (S, A) in zip(own, states(writes, h), strict=True):
            assert np.allclose(S, wanted["S"][h], rtol=1e-9, atol=1e-9)
            assert (A is None) == ("A" not in wanted)
            assert A is None or np.allclose(A, wanted["A"][h], rtol=1e-9, atol=1e-9)


def test_softmax_writes_no_matrix():
    layer = build("softmax", d_model=24, n_heads=3)
    with pytest.raises(ValueError, match="softmax keeps no memory matrix"):
        layer.writes(randn(1, 4, 24, seed=0, dtype=layer.q.weight.dtype))
