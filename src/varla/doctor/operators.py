"""The operators as the checks call them: inputs, gates, states, and the shapes that they are called with."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

import varla

# The settings of Gated VLA, as its layer has them.
_GATED: dict[str, Any] = {
    "feature_map": "silu",
    "normalize_query": True,
    "scale": None,
    "normalizer": False,
    "refresh_every": None,
}
_BEAT: dict[str, Any] = {"refresh_every": None, "forget_at": "beat", "beat": 64}
ALL = ("reference", "chunk", "triton")


@dataclass(frozen=True)
class Operator:
    """A function of `varla` with some of its inputs. `step`: the backends of its one-token function, if it has one."""

    function: str
    inputs: str
    state: type[varla.State]
    backends: tuple[str, ...] = ALL
    step: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def step_takes_backend(self) -> bool:
        """Whether the one-token function has a keyword `backend`."""
        return self.function == "vla"


OPERATORS = {
    "vla": Operator("vla", "q k v u", varla.VLAState, step=("reference", "triton")),
    "vla, gated": Operator(
        "vla", "q k v u beta decay strength", varla.VLAState, step=("reference", "triton"), options=_GATED
    ),
    "vla, forget": Operator(
        "vla", "q k v u beta decay strength forget", varla.ForgettingState, ("reference", "chunk"), ("reference",),
        _GATED,
    ),
    "vla, forget at the beat": Operator(
        "vla", "q k v u beta decay strength forget", varla.ForgettingState, step=("reference", "triton"),
        options={**_GATED, **_BEAT},
    ),
    "directions": Operator("directions", "k u", varla.DirectionState),
    "directions, gated": Operator(
        "directions", "k u strength forget", varla.ForgettingDirectionState, options=_BEAT
    ),
    "memory": Operator("memory", "q k v a", varla.MemoryState),
    "memory, gated": Operator("memory", "q k v a beta decay", varla.MemoryState),
    "delta_rule": Operator("delta_rule", "q k v beta", varla.DeltaRuleState, step=("reference",)),
    "delta_rule, gated": Operator("delta_rule", "q k v beta decay", varla.DeltaRuleState, step=("reference",)),
    "linear_attention": Operator("linear_attention", "q k v", varla.LinearAttentionState, step=("reference",)),
    "decayed_delta_rule": Operator("decayed_delta_rule", "q k v log_gate", varla.DeltaRuleState, step=("reference",)),
    "mesa": Operator("mesa", "q k v beta decay", varla.MesaState, ("reference", "chunk"), ("reference",)),
}  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """Sizes of a call. With `lengths`, sequences are packed. With `state`, every sequence begins with a state."""

    D: int
    Dv: int
    T: int = 0
    lengths: tuple[int, ...] = ()
    B: int = 1
    H: int = 2
    state: bool = False

    @property
    def tokens(self) -> int:
        """Tokens in a row."""
        return sum(self.lengths) or self.T

    @property
    def rows(self) -> int:
        """Rows of a state: one for each sequence."""
        return len(self.lengths) or self.B

    def offsets(self) -> Tensor | None:
        """cu_seqlens [N + 1]; None if nothing is packed."""
        return torch.tensor([0, *accumulate(self.lengths)]) if self.lengths else None

    def __str__(self) -> str:
        """The shape in words."""
        tokens = f"{len(self.lengths)} packed" if self.lengths else f"B={self.B} T={self.T}"
        return f"{tokens} H={self.H} D={self.D} Dv={self.Dv}" + (" state" if self.state else "")


def make_inputs(operator: Operator, shape: Shape) -> dict[str, Tensor]:
    """The operator's inputs by name, float64, on the CPU. The same every time."""
    where = (shape.B, shape.tokens, shape.H)
    widths = {"q": shape.D, "k": shape.D, "v": shape.Dv, "u": shape.D, "a": shape.D}
    return {
        name: _direction(name, drawn(name, *where, widths[name]))
        if name in widths
        else _gate(name, operator, drawn(name, *where))
        for name in operator.inputs.split()
    }


def _direction(name: str, x: Tensor) -> Tensor:
    """Given directions are short: S would grow without bound along long ones."""
    return x / 8 if name == "a" else x


def _gate(name: str, operator: Operator, x: Tensor) -> Tensor:
    """Values that the gate may have, from any number."""
    if name == "beta":
        return 2 * torch.sigmoid(x)
    if name == "strength":  # weak, as in models: the kernels' errors in bfloat16 grow with it
        return 0.05 * softplus(x)
    forgets = name == "forget" or operator.function == "mesa"  # then a chunk's errors grow with what it forgets
    return 0.1 * logsigmoid(x + 1) if forgets else logsigmoid(x + 2)


def make_state(operator: Operator, shape: Shape) -> varla.State | None:
    """A state as if tokens had been seen, a different number in every row; None if sequences begin with the call."""
    if not shape.state:
        return None
    where, D = (shape.rows, shape.H), shape.D
    root = drawn("root of A", *where, D, D)
    tensors = {
        "S": drawn("S", *where, shape.Dv, D),
        "A": root @ root.mT / D + torch.eye(D, dtype=root.dtype),
        "z": drawn("z", *where, D).abs(),
        "f": -0.1 * drawn("f", *where).abs(),
        "t": 3 + 14 * torch.arange(shape.rows),
    }
    return operator.state.of(tensors[name] for name in operator.state.LAYOUT)


def drawn(name: str, *shape: int) -> Tensor:
    """Normal numbers in float64 that depend on the name and the shape alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
