"""The base of all mechanisms: projections, short convolution, output norm and gate, state, readings."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from varla.arguments import check_choice, check_count, check_flag, check_number
from varla.layers.conv import ShortConvolution
from varla.layers.layout import BOTH, padding_layout
from varla.layers.norm import NORMS, make_norm
from varla.layers.state import LayerState
from varla.layers.writes import Writes
from varla.ops import State
from varla.ops.gate import gated
from varla.ops.split import Packing, check_tokens

FLOAT32, WIDE = 4, 8  # bytes of a number; WIDE is float64 or int64
Recorder = Callable[[Tensor], Tensor]  # gets attention weights, and returns those to continue with


class Layer(nn.Module, ABC):
    """A sequence mixer: `(x, state=None, cu_seqlens=None, attention_mask=None) -> (y, state)`, x and y [B, T, d_model].

    It trains in parallel form; with T = 1 and a state it decodes one token. A subclass adds its own projections, and
    defines how queries, keys and values are mixed (`mix`), into which state, and what to watch (`readings`, `written`).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    state_class: ClassVar[type[State]]

    def __init__(
        self,
        d_model: int,
        n_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        bias: bool = True,
        conv: int | None = None,
        output_norm: str = "none",
        norm_eps: float | None = None,
        output_gate: bool = False,
    ):
        """Options that all mechanisms share.

        `conv`: width of a short convolution before the projections. `output_norm`: norm over the merged heads;
        `norm_eps` is its epsilon (None: PyTorch's default). `output_gate`: out(norm(o) * silu(output_gate(x))), with x
        before the convolution.
        """
        super().__init__()
        check_count("d_model", d_model)
        check_count("n_heads", n_heads)
        check_count("head_dim", head_dim, none_means="d_model / n_heads")
        check_count("value_dim", value_dim, none_means="head_dim")
        check_count("conv", conv, none_means="no convolution")
        check_flag("bias", bias)
        check_flag("output_gate", output_gate)
        check_choice("output_norm", output_norm, NORMS)
        check_number("norm_eps", norm_eps, above=0, or_none=True)
        if head_dim is None and d_model % n_heads:
            raise ValueError(f"n_heads must divide d_model = {d_model} unless head_dim is given, got {n_heads}")
        self.d_model, self.n_heads = d_model, n_heads
        self.head_dim = head_dim or d_model // n_heads
        self.value_dim = value_dim or self.head_dim
        width, values = n_heads * self.head_dim, n_heads * self.value_dim
        self.conv = None if conv is None else ShortConvolution(d_model, conv, bias=bias)
        self.q = nn.Linear(d_model, width, bias=bias)
        self.k = nn.Linear(d_model, width, bias=bias)
        self.v = nn.Linear(d_model, values, bias=bias)
        self.norm = make_norm(output_norm, values, norm_eps)
        self.output_gate = nn.Linear(d_model, values, bias=bias) if output_gate else None
        self.out = nn.Linear(values, d_model, bias=bias)

    def forward(
        self,
        x: Tensor,
        state: LayerState | None = None,
        cu_seqlens: Packing = None,
        attention_mask: Tensor | None = None,
        record: Recorder | None = None,
    ) -> tuple[Tensor, LayerState]:
        """x [B, T, d_model] to (y [B, T, d_model], state).

        Args:
            x: the inputs.
            state: what an earlier call returned.
            cu_seqlens: as for `varla.vla`: B = 1, states of N rows. Or a `varla.ops.Split`: x are this rank's tokens.
            attention_mask: [B, T], 0 for padding. It is not read, wherever it stands: it changes neither the state nor
                other outputs, and its own outputs are 0. With a state, the mask is of these T tokens alone.
            record: a softmax layer passes its attention weights through it, see `mix_recorded`.
        """
        if attention_mask is None:
            return self._mixed(x, state, cu_seqlens, record)
        self._check_shape(x)
        if cu_seqlens is not None:
            raise ValueError(BOTH)
        layout = padding_layout(x.shape[:2], x.device, attention_mask)
        if layout is None:
            return self._mixed(x, state, None, record)
        y, state = self._mixed(layout.pack(x), state, layout.cu_seqlens, record)
        return layout.unpack(y), state

    def _mixed(
        self, x: Tensor, state: LayerState | None, cu_seqlens: Packing, record: Recorder | None
    ) -> tuple[Tensor, LayerState]:
        """`forward` of inputs without padding."""
        convolved, q, k, v, conv = self._project(x, state, cu_seqlens)
        inputs = (convolved, q, k, v, None if state is None else state.memory, cu_seqlens)
        o, memory = self.mix(*inputs) if record is None else self.mix_recorded(record, *inputs)
        o = self.norm(o.flatten(2))
        if self.output_gate is not None:
            o = gated(self.output_gate(x), o)
        return self.out(o), LayerState(conv, memory)

    def _check_shape(self, x: Tensor) -> None:
        if x.dim() != 3 or x.shape[-1] != self.d_model:
            raise ValueError(f"x must have shape [B, T, d_model = {self.d_model}], got {list(x.shape)}")

    def _project(
        self, x: Tensor, state: LayerState | None, cu_seqlens: Packing
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """(x after the convolution, q, k [B, T, H, head_dim], v [B, T, H, value_dim], state of the convolution)."""
        self._check_shape(x)
        check_tokens(cu_seqlens, x.shape[0], x.shape[1], x.device)
        conv = None
        if self.conv is not None:
            x, conv = self.conv(x, None if state is None else state.conv, cu_seqlens)
        return x, self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x)), conv

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, H * d] to [B, T, H, d]."""
        return x.view(*x.shape[:2], self.n_heads, x.shape[-1] // self.n_heads)

    @abstractmethod
    def mix(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, memory: Any, cu_seqlens: Packing) -> tuple[Tensor, State]:
        """The mechanism itself: raw q, k [B, T, H, D], v [B, T, H, Dv] to (o [B, T, H, Dv], state).

        `memory` is the state that an earlier call returned, or None.
        """

    def mix_recorded(self, record: Recorder, *inputs: Any) -> tuple[Tensor, State]:
        """`mix`, with attention weights passed through `record`. Recurrent mechanisms have none."""
        return self.mix(*inputs)

    def check_ranks(self, ranks: int) -> None:
        """Raise a ValueError if the tokens of this layer cannot be spread over so many ranks."""

    def state_size(self, T: int) -> int:
        """Bytes of one sequence's state after T tokens, for float32 inputs."""
        sizes = {"B": 1, "H": self.n_heads, "D": self.head_dim, "Dv": self.value_dim, "L": T}
        found = 0 if self.conv is None else self.conv.state_bytes()
        for name, letters in self.state_class.LAYOUT.items():
            width = WIDE if name in ("z", "t", "position") else FLOAT32
            found += width * math.prod(sizes[letter] for letter in letters.split())
        return found

    def readings(self, memory: State, k: Tensor) -> dict[str, Tensor]:
        """Numbers to watch after a token with raw key k [B, H, D], each [B, H]. By default the norm of S."""
        S = memory.tensors()["S"]
        return {"|S|": torch.linalg.matrix_norm(S)}

    def gate_readings(self, x: Tensor) -> dict[str, Tensor]:
        """Gates to watch at a token x [B, 1, d_model] after the convolution, each [B, H]. By default none."""
        return {}

    def written(self, x: Tensor, k: Tensor, v: Tensor) -> Writes:
        """What `mix` writes, from x after the convolution, raw k [B, T, H, D] and v [B, T, H, Dv]."""
        raise ValueError(f"{self.name} keeps no memory matrix S: there is nothing to watch")

    @torch.no_grad()
    def writes(self, x: Tensor) -> Writes:
        """What is written at every token of x [B, T, d_model], from an empty memory. Refused without a matrix S."""
        x, _, k, v, _ = self._project(x, None, None)
        return self.written(x, k, v)

    @torch.no_grad()
    def watch(self, x: Tensor, state: LayerState | None = None) -> dict[str, Tensor]:
        """Readings after every token of x [B, T, d_model], each [B, T, H]: a loop over tokens, not used in training."""
        rows: list[dict[str, Tensor]] = []
        for t in range(x.shape[1]):
            token = x[:, t : t + 1]
            x_t, _, k, *_ = self._project(token, state, None)
            _, state = self(token, state)
            rows.append({**self.readings(state.memory, k[:, 0]), **self.gate_readings(x_t)})
        return {name: torch.stack([row[name] for row in rows], 1) for name in (rows[0] if rows else {})}
