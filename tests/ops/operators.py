"""The operators by name, and what it takes to test them all alike: inputs, states, calls in every manner."""

from itertools import pairwise

import torch

import varla
from tests.ops.cases import of_type, randn, with_gradients

BACKENDS = {
    "vla": ("reference", "chunk", "auto"),
    "linear_attention": ("reference", "chunk", "auto"),
    "delta_rule": ("reference", "chunk", "auto"),
    "decayed_delta_rule": ("reference", "chunk", "auto"),
    "gated_vla": ("reference", "chunk", "auto"),
    "gated_delta_rule": ("reference", "chunk", "auto"),
    "forgetting_vla": ("reference", "chunk", "auto"),
    "mesa": ("reference", "chunk", "auto"),
}
# Operators with all of their gates are tested as operators of their own.
FUNCTIONS = {"gated_vla": "vla", "gated_delta_rule": "delta_rule", "forgetting_vla": "vla"}
# Options that an operator needs.
NEEDED = {"forgetting_vla": {"refresh_every": None, "beat": 6}, "mesa": {"beat": 6}}
OPS = tuple(BACKENDS)
# Without "auto", which is one of the others (test_edges.py).
OPS_AND_BACKENDS = [(op, backend) for op in OPS for backend in BACKENDS[op] if backend != "auto"]
LOOPS = [(op, backend) for op, backend in OPS_AND_BACKENDS if backend != "chunk"]
STATES = {
    "vla": varla.VLAState,
    "linear_attention": varla.LinearAttentionState,
    "delta_rule": varla.DeltaRuleState,
    "decayed_delta_rule": varla.DeltaRuleState,
    "gated_vla": varla.VLAState,
    "gated_delta_rule": varla.DeltaRuleState,
    "forgetting_vla": varla.ForgettingState,
    "mesa": varla.MesaState,
}
# One operator for each kind of state.
KINDS = ("vla", "linear_attention", "delta_rule", "forgetting_vla", "mesa")
FIELDS = {
    varla.VLAState: "SAzt",
    varla.LinearAttentionState: "Szt",
    varla.DeltaRuleState: "St",
    varla.ForgettingState: "SAzft",
    varla.MesaState: "SAft",
}
GAINS = ("unit", "projection", "raw")
# The inputs [B, T, H] that are not any number: how they are made of one.
GATES = {
    "beta": lambda x: 2 * x.sigmoid(),
    "log_gate": torch.nn.functional.logsigmoid,
    "decay": torch.nn.functional.logsigmoid,
    "strength": torch.nn.functional.softplus,
    "forget": lambda x: 0.1 * torch.nn.functional.logsigmoid(x),
}
GATES_OF = {
    "delta_rule": ("beta",),
    "decayed_delta_rule": ("log_gate",),
    "gated_vla": ("beta", "decay", "strength"),
    "gated_delta_rule": ("beta", "decay"),
    "forgetting_vla": ("beta", "decay", "strength", "forget"),
    "mesa": ("beta", "decay"),
}
B, T, H, D, DV = 2, 17, 3, 4, 5


def make_inputs(op, batch=B, time=T, heads=H, dim=D, dim_v=DV, dtype=torch.float64, seed=0):
    """The operator's inputs by name, in the order of its arguments."""
    widths = {"q": dim, "k": dim, "v": dim_v}
    if op in ("vla", "gated_vla", "forgetting_vla"):
        widths["u"] = dim
    inputs = {name: randn(batch, time, heads, n, seed=4 * seed + i) for i, (name, n) in enumerate(widths.items())}
    for i, gate in enumerate(GATES_OF.get(op, ())):
        made = GATES["forget" if (op, gate) == ("mesa", "decay") else gate]
        inputs[gate] = made(randn(batch, time, heads, seed=4 * seed + 3 + 500 * i))
    return {name: x.to(dtype) for name, x in inputs.items()}


def make_state(op, batch=B, heads=H, dim=D, dim_v=DV, dtype=torch.float64, seed=1, t=3):
    """A state as if tokens had been seen, a different number in every row."""
    root = randn(batch, heads, dim, dim, seed=1000 + 4 * seed)
    tensors = {
        "S": randn(batch, heads, dim_v, dim, seed=1001 + 4 * seed),
        "A": root @ root.mT / dim + torch.eye(dim, dtype=root.dtype),
        "z": randn(batch, heads, dim, seed=1002 + 4 * seed).abs(),
        "f": -0.1 * randn(batch, heads, seed=1003 + 4 * seed).abs(),
    }
    t = t + 7 * torch.arange(batch)
    return of_type(STATES[op](**{name: {**tensors, "t": t}[name] for name in FIELDS[STATES[op]]}), dtype)


def floats(state):
    """The state's tensors by name, less the count of tokens."""
    return {name: x for name, x in state.tensors().items() if name != "t"}


def map_state(state, function):
    """The state of function(x) for each of its tensors; None stays None."""
    return None if state is None else state.of(function(x) for x in state.tensors().values())


def row(state, i):
    """The state of one row of the batch."""
    return map_state(state, lambda x: x[i : i + 1])


def part(inputs, begin, end):
    return {name: x[:, begin:end] for name, x in inputs.items()}


def token(inputs, i):
    return {name: x[:, i] for name, x in inputs.items()}


def call_step(op, inputs, **options):
    """The step of one token, inputs [B, H, *]."""
    return getattr(varla, f"{FUNCTIONS.get(op, op)}_step")(**inputs, **{**NEEDED.get(op, {}), **options})


def call(op, inputs, **options):
    """The operator; or, as backend="step", its step for one token after the other."""
    if options.get("backend") != "step" or inputs["q"].shape[1] == 0:
        options |= {"backend": "reference"} if options.get("backend") == "step" else {}
        return getattr(varla, FUNCTIONS.get(op, op))(**inputs, **{**NEEDED.get(op, {}), **options})
    state, outputs = options.pop("initial_state", None), []
    del options["backend"]
    return_state = options.pop("return_state", False)
    for i in range(inputs["q"].shape[1]):
        o, state = call_step(op, token(inputs, i), state=state, **options)
        outputs.append(o)
    o = torch.stack(outputs, dim=1)
    return (o, state) if return_state else o


def call_in_pieces(op, inputs, *, bounds, forms, initial_state=None, return_state=True, **options):
    """(o, state) of one call after the other, from bound to bound, each with the keywords of its form."""
    state, outputs = initial_state, []
    for (begin, end), form in zip(pairwise(bounds), forms, strict=True):
        piece = part(inputs, begin, end)
        o, state = call(op, piece, initial_state=state, return_state=return_state, **form, **options)
        outputs.append(o)
    return torch.cat(outputs, dim=1), state


def call_apart(op, inputs, *, bounds, initial_state=None, return_state=True, **options):
    """(o, state) as of a call that packs the sequences between the bounds, by one call for each sequence."""
    outputs, states = [], []
    for i, (begin, end) in enumerate(pairwise(bounds)):
        piece, start = part(inputs, begin, end), row(initial_state, i)
        o, state = call(op, piece, initial_state=start, return_state=return_state, **options)
        outputs.append(o)
        states.append(state.tensors().values())
    return torch.cat(outputs, dim=1), STATES[op].of(torch.cat(xs) for xs in zip(*states, strict=True))


def outcome(op, inputs, state=None, *, by=call, **options):
    """Outputs, final state and the gradients of a random loss on all of them, by name: "o", "S", "d q", "d S", ...

    `by` makes the call: one of the above. A is symmetric, and so is what a gradient may say about it.
    """

    def operator(*tensors, **keywords):
        return by(op, dict(zip(inputs, tensors, strict=True)), **keywords)

    results = with_gradients(operator, list(inputs.values()), state, **options)
    for i, name in enumerate(inputs):
        results[f"d {name}"] = results.pop(f"d {i}")
    if "d A" in results:
        results["d A"] = (results["d A"] + results["d A"].mT) / 2
    return results
