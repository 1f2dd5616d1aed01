"""What a layer, and a stack of layers, remembers between calls."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from varla.ops import State
from varla.ops.checks import dtype_of

Kind = TypeVar("Kind", bound="Container")


class Container(ABC):
    """Named tensors that are copied, detached and moved together."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""

    @abstractmethod
    def map(self: Kind, function: Callable[[Tensor], Tensor]) -> Kind:
        """A container of the same kind with the function applied to every tensor."""

    def detach(self: Kind) -> Kind:
        """The same tensors, detached from the autograd graph (truncated back-propagation through time)."""
        return self.map(Tensor.detach)

    def clone(self: Kind) -> Kind:
        """A copy that shares no memory with this one."""
        return self.map(Tensor.clone)

    def to(self: Kind, device: torch.device | str) -> Kind:
        """The same on another device. There is no dtype here: the operators choose the precision of their states."""
        return self.map(lambda x: x.to(device))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(x.nbytes for x in self.tensors().values())

    def __repr__(self) -> str:
        """Types and shapes, a line for each tensor."""
        lines = [f"  {name}: {dtype_of(x)} {list(x.shape)}" for name, x in self.tensors().items()]
        return "\n".join([f"{type(self).__name__} of {self.nbytes:,} bytes", *lines])


@dataclass(eq=False, repr=False)
class LayerState(Container):
    """What a layer remembers: the convolution's last inputs (None without one) and the mechanism's own state."""

    conv: Tensor | None
    memory: State

    def tensors(self) -> dict[str, Tensor]:
        """The convolution's inputs as "conv", if there is a convolution; then the mechanism's tensors."""
        return {**({} if self.conv is None else {"conv": self.conv}), **self.memory.tensors()}

    def map(self, function: Callable[[Tensor], Tensor]) -> "LayerState":
        """A state with the function applied to every tensor."""
        conv = None if self.conv is None else function(self.conv)
        return LayerState(conv, self.memory.of(function(x) for x in self.memory.tensors().values()))


pytree.register_pytree_node(
    LayerState,
    lambda state: ([state.conv, state.memory], None),
    lambda values, _: LayerState(*values),
    serialized_type_name="varla.layers.LayerState",
)


@dataclass(eq=False, repr=False)
class ModelState(Container):
    """The state of every layer, and the tokens that each row has seen, t [rows]."""

    layers: list[LayerState]
    t: Tensor

    def tensors(self) -> dict[str, Tensor]:
        """The layers' tensors as "layers.I.NAME", and "t"."""
        held = {f"layers.{i}.{name}": x for i, layer in enumerate(self.layers) for name, x in layer.tensors().items()}
        return {**held, "t": self.t}

    def map(self, function: Callable[[Tensor], Tensor]) -> "ModelState":
        """A state with the function applied to every tensor."""
        return ModelState([layer.map(function) for layer in self.layers], function(self.t))
