"""What a layer, and a stack of layers, remembers between calls."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.utils import _pytree as pytree

from varla.ops.state import Container, State


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
        return LayerState(conv, self.memory.map(function))


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
