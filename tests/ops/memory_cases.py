"""`varla.memory` by cases: its optional inputs, its options, results with all gradients."""

from torch.nn.functional import logsigmoid

import varla
from tests.ops.cases import randn, vla_state, with_gradients

B, H, D, DV = 2, 2, 5, 4
INPUTS = ("q", "k", "v", "a", "beta", "decay")
NO_NORMALIZER = {"normalizer": False}
# The optional inputs, and the options that go with them.
GIVEN = {
    "keys": ("", {}),
    "a": ("a", {}),
    "beta": ("beta", {}),
    "a, beta": ("a beta", {}),
    "decay": ("decay", {}),
    "a, decay": ("a decay", {}),
    "beta, decay": ("beta decay", {}),
    "a, beta, decay": ("a beta decay", {}),
}
OPTIONS = {
    "as they are": {},
    "decay after the prediction": {"decay_first": False},
    "silu": {"feature_map": "silu", "normalizer": False},
    "no normalizer": NO_NORMALIZER,
    "values, not errors": {"error": False},
    "values, no normalizer": {"error": False, "normalizer": False},
    "unit queries": {"normalize_query": True},
    "scale by D": {"scale": None, "normalize_query": True},
    "scale by 3": {"scale": 3},
    "keys as they are": {"normalize_key": False, "feature_map": "identity", "eps": 0.5},
    # Without positive features the denominator changes sign: a large eps puts tokens on both sides of the clamp.
    "identity": {"feature_map": "identity", "eps": 0.5},
    "identity, values, keys as they are": {
        "feature_map": "identity", "eps": 0.5, "error": False, "normalize_key": False
    },
}  # fmt: skip


def make(T, given="", batch=B, rows=B, heads=H, dim=D, dim_v=DV):
    """The inputs by name, and a state. Directions and unnormalised keys are short, or S would grow without bound."""
    widths = {"q": dim, "k": dim, "v": dim_v, "a": dim}
    inputs = {name: randn(batch, T, heads, width, seed=i) for i, (name, width) in enumerate(widths.items())}
    inputs["k"] = inputs["k"] / 4
    inputs["a"] = inputs["a"] / 4
    inputs["beta"] = 2 * randn(batch, T, heads, seed=5).sigmoid()
    inputs["decay"] = logsigmoid(3 * randn(batch, T, heads, seed=6))
    state = vla_state(B=rows, H=heads, D=dim, Dv=dim_v)
    found = {name: inputs[name] for name in INPUTS if name in ("q", "k", "v", *given.split())}
    return found, varla.MemoryState(state.S, state.z, state.t)


def outcome(inputs, state, function=varla.memory, **options):
    """Results and gradients of a call with inputs by name."""

    def call(*tensors, **keywords):
        return function(**dict(zip(inputs, tensors, strict=True)), **keywords)

    return with_gradients(call, list(inputs.values()), state, **options)


def options_of(given, name="as they are"):
    return {**OPTIONS[name], **GIVEN[given][1]}
