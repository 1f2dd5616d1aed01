"""Packed numbers are the numbers to rounding, their size is known before, and layers that do not fit are left out."""

import base64
import json

import numpy as np
import pytest
import torch

from tests.layers.test_writes import OPTIONS, make
from varla.layers.writes import Rule, Writes
from varla.watch.pack import encode, fit, pack, size
from varla.watch.trace import LayerTrace


def decoded(found, T, H):
    """The array [T, H, ...] that `encode` packed."""
    data = np.frombuffer(base64.b64decode(found["data"]), f"<i{found['bits'] // 8}" if "bits" in found else "<f4")
    if "bits" not in found:
        return data.reshape(H, T).T
    scale = np.frombuffer(base64.b64decode(found["scale"]), "<f4").reshape(H, T, 1)
    return np.moveaxis(data.reshape(H, T, -1) * scale, 0, 1)


def wide(index=0, width=64, T=100):
    x = torch.ones(1, T, 2, width)
    return LayerTrace(index, "deltanet", Writes(Rule(), x, x.clone(), beta=x[..., 0]))


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_inputs_come_back_to_rounding(name, options):
    layer, x = make(name, options)
    trace = LayerTrace(0, name, layer.writes(x))
    for bits in (16, 8):
        packed = pack(trace, bits)
        assert (packed["H"], packed["D"], packed["Dv"]) == (3, 6, 10)
        for key, found in packed["inputs"].items():
            wanted = getattr(trace.writes, key)[0].double().numpy()
            got = decoded(packed["inputs"][found] if isinstance(found, str) else found, *wanted.shape[:2])
            most = np.abs(wanted).max(-1, keepdims=True) if wanted.ndim == 3 else np.abs(wanted)
            assert np.all(np.abs(got - wanted) <= most * 0.51 / (2 ** (bits - 1) - 1) + 1e-7)
        assert len(json.dumps(packed)) <= size(trace, bits)


def test_an_input_that_is_another_is_packed_once():
    layer, x = make("mesa", {})
    packed = pack(LayerTrace(0, "mesa", layer.writes(x)), 16)["inputs"]
    assert (packed["u"], packed["strength"]) == ("k", "beta")


def test_a_vector_of_zeros_is_zero():
    assert not decoded(encode(torch.zeros(1, 5, 2, 3), 8), 5, 2).any()


def test_numbers_that_are_none_are_refused():
    with pytest.raises(ValueError, match="NaN or infinity"):
        encode(torch.full((1, 2, 1, 3), torch.nan), 16)


def test_layers_lose_bits_before_they_are_left_out():
    layers = [wide(i) for i in range(6)]
    room = sum(size(layer, 16) for layer in layers)
    assert fit(layers, room) == (layers, 16)
    assert fit(layers, room - 1) == (layers, 8)
    chosen, bits = fit(layers, 3 * size(layers[0], 8))
    assert (bits, [layer.index for layer in chosen]) == (8, [0, 2, 5])
    assert len(fit(layers, size(layers[0], 8))[0]) == 1
    with pytest.raises(ValueError, match=r"100 tokens of one layer take .* at most (4\d|50) tokens"):
        fit(layers, size(layers[0], 8) // 2)
