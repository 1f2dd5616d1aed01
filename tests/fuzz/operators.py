"""Arguments of the operators: odd shapes, types, devices, layouts and settings. Wrong ones are refused by name."""

import inspect
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import varla
from tests.fuzz.core import ACCEPTED, Attempt, Find, refused
from tests.fuzz.damage import ODD
from tests.ops.operators import GATES
from varla.ops.dispatch import default_chunk_size
from varla.ops.features import Features
from varla.ops.state import State

NAMES = (
    "vla", "linear_attention", "delta_rule", "decayed_delta_rule", "directions", "memory", "vla_step",
    "linear_attention_step", "delta_rule_step", "decayed_delta_rule_step", "mesa", "mesa_step",
)  # fmt: skip
TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
OTHER_TYPES = (torch.int64, torch.bool, torch.complex64, torch.uint8, torch.float8_e4m3fn)
WIDTHS = {
    "q": "D",
    "k": "D",
    "u": "D",
    "a": "D",
    "v": "V",
    "beta": "",
    "log_gate": "",
    "decay": "",
    "strength": "",
    "forget": "",
}
TENSORS = tuple(WIDTHS)
WRONG = 1e-2  # float32 may lose digits, but not its meaning
NEAR = 1e-6  # of the type's largest number: sums and products of the same token may overflow before the output
# Settings and values of them that are plausible.
CHOICES: dict[str, tuple[Any, ...]] = {
    "backend": ("auto", "chunk", "reference", "triton", "scan"),
    "chunk_size": (None, 1, 2, 5, 64),
    "lambda0": (0.1, 1, 1e-3, 1e-6, 1e-45, 10**400, 1e30),
    "refresh_every": (20, 1, 2, None),
    "refresh": (1e-3, 0, 1.0),
    "beat": (64, 1, 3, 0),
    "forget_at": ("token", "beat", "end"),
    "eps": (1e-4, 0, 1.0),
    "gain": ("unit", "projection", "raw"),
    "feature_map": ("elu1", "silu", "identity", "relu"),
    "penalty_scale": (None, 1.0, 0.5, 1e-30),
    "scale": (None, 1.0, -2),
    "normalize_query": (True, False),
    "decay_first": (True, False),
    "normalizer": (True, False),
    "normalize_key": (True, False),
    "update_penalty": (True, False),
    "error": (True, False),
}


def operators(folder: Path) -> Attempt:
    """Calls with one to three odd arguments."""

    def attempt(draw: random.Random) -> str:
        name = draw.choice(NAMES)
        function = getattr(varla, name)
        arguments = _arguments(name, function, draw)
        for _ in range(draw.choice((0, 1, 1, 2, 3))):
            _spoil(arguments, draw)
        given = {key: value for key, value in arguments.items() if value is not inspect.Parameter.empty}
        try:
            found = function(**given)
        except Exception as error:
            return refused(error, *inspect.signature(function).parameters, *given)
        _check(found, given)
        return ACCEPTED

    return attempt


def forms(folder: Path) -> Attempt:
    """Calls that are right, by two backends: `chunk` in float32 and float64 has the reference's numbers.

    S may diverge: where the float64 reference is beyond the range of the inputs' type, every form must be infinite or
    NaN. It must not be so anywhere else, except shortly before: see `Heads`.
    """

    def attempt(draw: random.Random) -> str:
        name = draw.choice([each for each in NAMES if not each.endswith("_step")])
        function = getattr(varla, name)
        given = _arguments(name, function, draw, longest=90, types=TYPES[:2]) | {"return_state": True}
        given |= {key: given[key] * draw.choice((1, 1, 30, 500)) for key in ("log_gate", "decay") if key in given}
        given |= {key: given[key] * draw.choice((1, 1, 0, 1e-4, 30)) for key in ("strength",) if key in given}
        if given.get("normalize_key") is False and name in ("vla", "memory"):  # long keys: as in `_stable`
            given |= {"feature_map": "identity", "k": given["k"] / given["k"].norm(dim=-1, keepdim=True).clamp_min(1)}
        if "a" in given:
            given["a"] = _stable(given)
        try:
            compare(name, given)
        except Find:
            raise
        except Exception as error:
            return refused(error, *inspect.signature(function).parameters)
        return ACCEPTED

    return attempt


def gradients(folder: Path) -> Attempt:
    """Calls that are right, in float64: the backward of `chunk` has the gradients of the reference, also of a state."""

    def attempt(draw: random.Random) -> str:
        name = draw.choice([each for each in NAMES if not each.endswith("_step")])
        function = getattr(varla, name)
        given = _arguments(name, function, draw, longest=40, types=TYPES[1:2]) | {"return_state": True}
        given |= {key: given[key] * draw.choice((1, 1, 30)) for key in ("log_gate", "decay") if key in given}
        given |= {key: given[key] * draw.choice((1, 1, 0, 1e-4, 30)) for key in ("strength",) if key in given}
        weights = torch.Generator().manual_seed(draw.getrandbits(32))
        try:
            compare_gradients(name, given, weights)
        except Find:
            raise
        except Exception as error:
            return refused(error, *inspect.signature(function).parameters)
        return ACCEPTED

    return attempt


def compare_gradients(name: str, given: dict[str, Any], weights: torch.Generator) -> None:
    """Raise a Find if the gradients of the forms do not agree. All outputs and the final state have random weights."""
    seed = weights.initial_seed()
    loop = {key: value for key, value in given.items() if key != "chunk_size"}
    wanted = _gradients(name, loop | {"backend": "reference"}, torch.Generator().manual_seed(seed))
    found = _gradients(name, given | {"backend": "chunk"}, torch.Generator().manual_seed(seed))
    if not all(x.isfinite().all() for x in wanted.values()):  # S diverges: see `forms`
        return
    # A gradient may cancel: that of a key of one dimension is 0. Then it is compared with the others.
    least = max(0.1, *(1e-2 * float(x.abs().max()) for x in wanted.values() if x.numel()))
    for key, value in wanted.items():
        if key == "u" and value.shape[-1] == 1:  # of unit length, it has no gradient; the loop's is all rounding
            value = torch.zeros_like(value)
        off = float((found[key] - value).abs().max() / value.abs().max().clamp_min(least)) if value.numel() else 0.0
        if not off <= 1000 * _allowed(name, given):
            raise Find(f"the gradient of {name} is off by {off:.1e} in {key}")


def _gradients(name: str, given: dict[str, Any], weights: torch.Generator) -> dict[str, Tensor]:
    """Gradients of the inputs and of the initial state, by name."""
    leaves: dict[str, Tensor] = {}

    def leaf(key: str, x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        leaves[key] = x.detach().clone().requires_grad_()
        return leaves[key]

    tracked = {key: leaf(key, value) for key, value in given.items()}
    state = given.get("initial_state")
    if state is not None:
        tracked["initial_state"] = type(state)(**{key: leaf(f"initial {key}", x) for key, x in state.tensors().items()})
    o, after = getattr(varla, name)(**tracked)
    results = [o, *(x for x in after.tensors().values() if x.is_floating_point())]
    loss = sum((x * torch.randn(x.shape, generator=weights, dtype=x.dtype)).sum() for x in results)
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def compare(name: str, given: dict[str, Any]) -> None:
    """Raise a Find if the forms of an operator do not agree on these arguments."""
    function = getattr(varla, name)
    loop = {key: value for key, value in given.items() if key != "chunk_size"} | {"backend": "reference"}
    wanted = _numbers(function(**{key: _double(value) for key, value in loop.items()}))
    plain = _numbers(function(**loop))
    found = _numbers(function(**given | {"backend": "chunk"}))
    heads = Heads(wanted, given)
    for key, value in wanted.items():
        theirs, ours = heads.off(key, plain[key], value, 1), heads.off(key, found[key], value, heads.chunk)
        if not theirs <= WRONG:
            raise Find(f"the reference of {name} is off by {theirs:.1e} in {key}")
        if not ours <= max(100 * theirs, _allowed(name, given)):
            raise Find(f"{name} is off by {ours:.1e} in {key}, its reference by {theirs:.1e}")


class Heads:
    """How large the outputs of each sequence and head get up to each token: some diverge.

    A head may be infinite or NaN from the first token at which a number comes near the end of the type's range. In
    chunks of n tokens that reaches up to n - 1 tokens before it.
    """

    def __init__(self, wanted: dict[str, Tensor], given: dict[str, Any]):
        """Read the outputs and S of the float64 reference."""
        self.largest = torch.finfo(given["k"].dtype).max
        # v - S k may be all rounding: then its error is one of v.
        self.least = max(1e-3, 1e-2 * float(given["v"].abs().max())) if "v" in given else 1e-3
        self.chunk = given.get("chunk_size") or default_chunk_size(given["k"].shape[-1])
        held = given.get("initial_state")
        self.start = None if held is None or "S" not in held.LAYOUT else held.S.abs().max().double()
        packed = given.get("cu_seqlens")
        lengths = [wanted["o"].shape[1]] if packed is None else packed.diff().tolist()
        size = wanted["o"].abs().nan_to_num(torch.inf).amax(-1, keepdim=True)
        # [B, T, H, 1] of each sequence. One without tokens has no outputs.
        self.reach = [x.cummax(1)[0] for x in size.split(lengths, 1)]
        self.end = torch.cat([x.amax(1) if x.shape[1] else x.new_zeros(1, *x.shape[2:]) for x in self.reach])[..., None]
        if "S" in wanted:  # [N, H, 1, 1]
            self.end = self.end.maximum(wanted["S"].abs().nan_to_num(torch.inf).amax((-2, -1), keepdim=True))

    def off(self, key: str, x: Tensor, wanted: Tensor, chunk: int) -> float:
        """The largest difference; infinite or NaN if x is finite where it must not be, or the other way round."""
        if not x.numel():
            return 0.0
        nothing = torch.zeros_like(wanted)  # the other numbers of a state do not depend on S
        so_far, soon, ever = (x.expand_as(wanted) for x in self._reach(key, chunk) or (nothing,) * 3)
        near = NEAR * self.largest
        # Relative to the largest number, or to `least` where the inputs cancel each other. A head that diverges has
        # numbers of all sizes: there, relative to the largest so far.
        largest = wanted.masked_fill(ever > near, 0).abs().max()
        if key in ("S", "o") and self.start is not None:  # S may shrink, but not its errors inside a chunk
            largest = largest.maximum(self.start)
        off = (x - wanted).abs() / torch.where(ever > near, so_far, largest).clamp_min(self.least)
        off = torch.where((soon > near) & ~x.isfinite(), 0.0, off)
        beyond = ~(wanted.abs() / 1.01 <= self.largest)
        return float(torch.where(beyond, torch.where(x.isfinite(), torch.inf, 0.0), off).max())

    def _reach(self, key: str, chunk: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """The largest number of a head up to each token, up to the end of its chunk, and up to the last token."""
        if key == "S":
            return self.end, self.end, self.end
        if key != "o":
            return None
        last = [torch.arange(x.shape[1]).add(chunk - 1).clamp(max=x.shape[1] - 1) for x in self.reach]
        soon = [x[:, i] for x, i in zip(self.reach, last, strict=True)]
        ever = [x[:, -1:].expand_as(x) for x in self.reach]
        return torch.cat(self.reach, 1), torch.cat(soon, 1), torch.cat(ever, 1)


def _stable(given: dict[str, Any]) -> Tensor:
    """Write directions with a . k from 0 to 1, as all mechanisms have them.

    With others S grows and shrinks by turns. In a chunk the small S has the rounding errors of the large one.
    """
    k = Features(given["k"], given.get("feature_map", "elu1"), given.get("normalize_key", True)).y
    a = given["a"] / (given["a"].norm(dim=-1, keepdim=True) * k.norm(dim=-1, keepdim=True)).clamp_min(1)
    return torch.where((a * k).sum(-1, keepdim=True) < 0, -a, a)


def _allowed(name: str, given: dict[str, Any]) -> float:
    """Rounding, which grows with A before the first token and as the prior is forgotten (`varla.vla`)."""
    forgotten = given.get("decay" if name == "mesa" else "forget")
    share = 1.0
    if forgotten is not None and given.get("forget_at") != "beat":  # until a beat gives the prior back
        least = given.get("beat", 64) * forgotten.min()
        share = float(forgotten.sum(1).min().maximum(least).double().exp().clamp(min=1e-300))
    A = 1 / given.get("lambda0", 0.1)
    held = given.get("initial_state")
    if held is not None and "A" in held.LAYOUT:
        A = max(A, float(held.A.diagonal(dim1=-2, dim2=-1).sum(-1).max()))  # at least its largest eigenvalue
    eps = torch.finfo(given["k"].dtype).eps
    return eps * (1000 + 50 * _weight(name, given) * A / share)


def _weight(name: str, given: dict[str, Any]) -> float:
    """The largest squared length of u."""
    if name == "mesa":
        length = 1.0 if given.get("normalize_key", True) else float(given["k"].double().square().sum(-1).max())
        return float(given["beta"].max()) * length
    return float(given["strength"].max()) if "strength" in given else (given.get("penalty_scale") or 1.0) ** 2


def _double(value: Any) -> Any:
    if isinstance(value, State):
        return value.map(_double)
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _numbers(found: tuple[Tensor, State]) -> dict[str, Tensor]:
    o, state = found
    return {"o": o.double(), **{name: x.double() for name, x in state.tensors().items()}}


def _arguments(
    name: str, function: Any, draw: random.Random, longest: int = 5, types: tuple[torch.dtype, ...] = TYPES
) -> dict[str, Any]:
    """A call that is right."""
    step = name.endswith("_step")
    sizes = {"B": draw.randint(1, 2), "T": draw.randint(1, longest), "H": draw.randint(1, 2), "D": draw.randint(1, 4)}
    sizes["V"] = draw.randint(1, 4)
    dtype = draw.choice(types)
    numbers = torch.Generator().manual_seed(draw.getrandbits(32))
    parameters = inspect.signature(function).parameters
    found: dict[str, Any] = {}
    for key in TENSORS:
        if key in parameters and (parameters[key].default is not None or key == "a" or draw.random() < 0.5):
            channels = "V" if key == "log_gate" and draw.random() < 0.3 else ""  # a gate for each value channel
            shape = [sizes[letter] for letter in ("BH" if step else "BTH") + WIDTHS[key] + channels]
            x = torch.randn(shape, generator=numbers).to(dtype)
            found[key] = GATES.get(key, torch.clone)(x)
    for key, values in CHOICES.items():
        if key in parameters and draw.random() < 0.2:
            found[key] = draw.choice(values)
    if "forget" in found:
        found["refresh_every"] = None
    if not step and draw.random() < 0.5:
        found["return_state"] = True
    if draw.random() < 0.3:
        _add_state(name, function, found)
    if "cu_seqlens" in parameters and draw.random() < 0.1 and sizes["B"] == 1:
        found["cu_seqlens"] = torch.tensor(sorted({0, draw.randint(0, sizes["T"]), sizes["T"]}), dtype=torch.int32)
    return found


def _add_state(name: str, function: Any, found: dict[str, Any]) -> None:
    """The state after the inputs themselves, if they are right together."""
    plain = {key: value for key, value in found.items() if isinstance(value, Tensor)}
    key = "state" if name.endswith("_step") else "initial_state"
    with suppress(ValueError):
        _, found[key] = function(**plain, **({} if key == "state" else {"return_state": True}))


def _spoil(arguments: dict[str, Any], draw: random.Random) -> None:
    """Change one argument, if one is left."""
    if not arguments:
        return
    key = draw.choice(list(arguments))
    value = arguments[key]
    if draw.random() < 0.05:
        arguments[draw.choice((f"{key}x", "foo", key.upper()))] = value
    elif draw.random() < 0.05:
        del arguments[key]
    else:
        with suppress(RuntimeError, TypeError, AttributeError, IndexError):  # an odd tensor may not become odder
            arguments[key] = _spoiled(value, draw)


def _spoiled(value: Any, draw: random.Random) -> Any:
    if isinstance(value, State):
        tensors = dict(value.tensors())
        _spoil(tensors, draw)
        return draw.choice((value.map(_other(draw)), _state(value, tensors), tensors, None))
    return _odd(value, draw) if isinstance(value, Tensor) and draw.random() < 0.9 else draw.choice(ODD)


def _state(like: State, tensors: dict[str, Any]) -> Any:
    return type(like)(**tensors) if set(tensors) == set(like.LAYOUT) else like


def _other(draw: random.Random) -> Any:
    dtype = draw.choice((*TYPES, *OTHER_TYPES))
    return draw.choice((lambda x: x.to(dtype), lambda x: x[:0], lambda x: x.to("meta")))


def _odd(x: Tensor, draw: random.Random) -> Any:
    """A tensor that differs in one way. (PyTorch itself may crash if an odd layout is made odder.)"""
    if x.layout != torch.strided or x.is_nested or x.is_meta:
        return x
    match draw.randrange(14):
        case 0:
            return x.to(draw.choice((*TYPES, *OTHER_TYPES)))
        case 1:
            return x.to("meta")
        case 2:
            return x.to_sparse()
        case 3:
            return torch.nested.nested_tensor(list(x)) if x.dim() > 1 and len(x) else x
        case 4:
            return x.to_mkldnn() if x.dtype == torch.float32 and x.numel() else x
        case 5:
            return x.narrow(draw.randrange(x.dim()), 0, 0) if x.dim() else x
        case 6:
            dim = draw.randrange(x.dim() + 1)
            return x.unsqueeze(dim)
        case 7:
            return x.select(draw.randrange(x.dim()), 0) if x.dim() and x.numel() else x
        case 8:
            return torch.cat([x, x], draw.randrange(x.dim())) if x.dim() else x
        case 9:
            return x.transpose(0, -1) if x.dim() else x
        case 10:
            return x * draw.choice((float("nan"), float("inf"), -1e30, 1e30))
        case 11:
            return x.tolist()
        case 12:
            return x.numpy() if x.dtype != torch.bfloat16 else x
        case _:
            return x[:1].expand_as(x) if x.dim() and len(x) else x


def _check(found: Any, given: dict[str, Any]) -> None:
    """The output has the shape and type that the inputs say."""
    o = found[0] if isinstance(found, tuple) else found
    like = given["v" if "v" in given else "k"]
    if not isinstance(o, Tensor) or o.shape != like.shape or o.dtype != like.dtype:
        raise Find(f"returned {o.dtype} {list(o.shape)} for {like.dtype} {list(like.shape)}")
