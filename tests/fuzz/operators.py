"""Arguments of the operators: odd shapes, types, devices, layouts and settings. Wrong ones are refused by name."""

import inspect
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import varla
from tests.fuzz.compare import compare, compare_gradients
from tests.fuzz.core import ACCEPTED, Attempt, Find, refused
from tests.fuzz.damage import ODD
from tests.ops.operators import GATES
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


def _stable(given: dict[str, Any]) -> Tensor:
    """Write directions with a . k from 0 to 1, as all mechanisms have them.

    With others S grows and shrinks by turns. In a chunk the small S has the rounding errors of the large one.
    """
    k = Features(given["k"], given.get("feature_map", "elu1"), given.get("normalize_key", True)).y
    a = given["a"] / (given["a"].norm(dim=-1, keepdim=True) * k.norm(dim=-1, keepdim=True)).clamp_min(1)
    return torch.where((a * k).sum(-1, keepdim=True) < 0, -a, a)


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
