"""The state of a model between calls, as a cache of transformers."""

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer, LinearAttentionLayer

from varla.layers import LayerState, ModelState
from varla.models.configuration import VarlaConfig

Signature = tuple[tuple[str, str], ...]


class VarlaCache(Cache):  # type: ignore[misc]
    """The state of every layer. Its size is constant, except for softmax layers, whose keys and values grow.

        cache = VarlaCache(model.config)
        model(input_ids, past_key_values=cache)     # reads and updates it

    Transformers' own caches keep lists of keys and values, or one tensor a layer. This one keeps a `ModelState`, as the
    lab's decoder does (`state`, None before the first call), and answers what `generate` asks. It cannot be shortened:
    a recurrent state does not hold its own past. `last` [rows, hidden_size] is the hidden state of each row's last
    token: what follows padding is predicted from it.
    """

    def __init__(self, config: VarlaConfig, made_for: Signature | None = None):
        """An empty cache for models of this configuration. `made_for`: its `signature`, if that is known already."""
        if not isinstance(config, VarlaConfig):
            raise TypeError(f"config must be a VarlaConfig, got {type(config).__name__}")
        super().__init__(layers=[])  # see the property `layers`
        self.made_for = signature(config) if made_for is None else made_for
        self.state: ModelState | None = None
        self.last: Tensor | None = None
        self.tokens = 0

    def read(self, wanted: Signature, rows: int) -> ModelState | None:
        """The state, or None before the first call; a ValueError unless it fits this signature and number of rows."""
        for i, (theirs, ours) in enumerate(zip(self.made_for, wanted, strict=False)):
            if theirs != ours:
                raise ValueError(
                    f"past_key_values is of another model: its layer {i} is {': '.join(theirs)}; "
                    f"this model's is {': '.join(ours)}"
                )
        if len(self) != len(wanted):
            raise ValueError(
                f"past_key_values is of another model: it has {len(self)} layers, this model {len(wanted)}"
            )
        if self.batch_size not in (-1, rows):
            raise ValueError(
                f"past_key_values holds {self.batch_size} rows, the call has {rows}; resize it by "
                "batch_select_indices or batch_repeat_interleave"
            )
        return self.state

    def write(self, layers: list[LayerState], tokens: int, last: Tensor | None = None) -> None:
        """Keep the layers' states and the last hidden states after `tokens` more tokens a row, padding included."""
        self.state = ModelState(layers, layers[0].memory.tensors()["t"])
        self.last = last
        self.tokens += tokens

    @property
    def nbytes(self) -> int:
        """Bytes of all layers' states together."""
        return 0 if self.state is None else sum(layer.nbytes for layer in self.state.layers)

    def clone(self) -> "VarlaCache":
        """A cache that shares no memory with this one: to continue in two ways."""
        return self._mapped(Tensor.clone)

    def detach(self) -> "VarlaCache":
        """A cache of the same tensors, detached from the autograd graph."""
        return self._mapped(Tensor.detach)

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> "VarlaCache":
        """A cache with the function applied to every tensor; this one stays as it is."""
        found = copy.copy(self)
        found._map(function)
        return found

    def _map(self, function: Callable[[Tensor], Tensor]) -> None:
        if self.state is not None:
            self.state = self.state.map(function)
        if self.last is not None:
            self.last = function(self.last)

    # The interface of transformers' caches.

    is_compileable = False  # softmax layers grow, and nothing is updated in place
    is_croppable = False  # see `crop`

    @property
    def layers(self) -> list[Any]:
        """The layers as transformers' own kinds, for code that compares or iterates caches. Changing them does nothing.

        A softmax layer is a DynamicLayer: keys, values [rows, heads, tokens, head_dim]. Another is a
        LinearAttentionLayer: `conv_states[0]` is [rows, channels, width - 1], and there is one of recurrent_states for
        each tensor of its state but the number of tokens, S first.
        """
        states = [None] * len(self.made_for) if self.state is None else self.state.layers
        return [_as_layer(name, state) for (name, _), state in zip(self.made_for, states, strict=True)]

    @layers.setter
    def layers(self, _: Any) -> None:
        """Transformers' constructor sets it."""

    def __len__(self) -> int:
        """The number of layers. At 0, `if cache:` would be false."""
        return len(self.made_for)

    def __repr__(self) -> str:
        return (
            f"VarlaCache({len(self)} layers, {max(self.batch_size, 0)} rows, {self.tokens} tokens, {self.nbytes} bytes)"
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that each row has seen, padding included, as `generate` counts them."""
        return self.tokens

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        """(length, offset) of a mask over past and present."""
        length = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.tokens + length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: there is no limit."""
        return -1

    @property
    def batch_size(self) -> int:
        """Rows; -1 before the first call."""
        return -1 if self.state is None else self.state.t.shape[0]

    @property
    def is_initialized(self) -> bool:
        """Whether there are states yet."""
        return self.state is not None

    @property
    def is_sliding(self) -> list[bool]:
        """No layer has a window."""
        return [False] * len(self)

    @property
    def is_linear(self) -> list[bool]:
        """Which layers have a state of constant size."""
        return [name != "softmax" for name, _ in self.made_for]

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Whether there are states yet."""
        return self.is_initialized

    def reset(self) -> None:
        """Forget everything."""
        self.state = self.last = None
        self.tokens = 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Rows `beam_idx`, in that order: for beam search."""
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep rows `indices`, in that order; one may come twice."""
        self._map(lambda x: x[indices.to(x.device)])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row `repeats` times, one after the other."""
        self._map(lambda x: x.repeat_interleave(repeats, 0))

    def crop(self, *_: Any) -> None:
        """Refused."""
        raise ValueError(
            "a VarlaCache cannot be shortened: a recurrent state does not hold its own past. Keep a clone() of the "
            "cache from before (and for assisted or contrastive generation, use another model)"
        )

    def activate_past_recording(self) -> None:
        """Refused: it prepares for `crop`."""
        self.crop()

    def update(self, *_: Any, **__: Any) -> Any:
        """Refused."""
        raise TypeError("a VarlaCache is updated by models of the family alone, not by keys and values")

    update_conv_state = update_recurrent_state = update_indexer = early_initialization = update


def _as_layer(mechanism: str, state: LayerState | None) -> Any:
    """A layer's state as one of transformers' layers."""
    memory = {} if state is None else {key: x for key, x in state.memory.tensors().items() if key != "t"}
    if mechanism == "softmax":
        dynamic = DynamicLayer()
        if memory:
            dynamic.update(memory["k"].transpose(1, 2), memory["v"].transpose(1, 2))
        return dynamic
    linear = LinearAttentionLayer(number_of_states=max(1, len(memory)))
    for i, x in enumerate(memory.values()):
        linear.recurrent_states[i] = x
        linear.is_recurrent_states_initialized[i] = linear.has_previous_state[i] = True
        linear.dtype, linear.device = x.dtype, x.device
    if state is not None and state.conv is not None:
        linear.conv_states[0] = state.conv.mT
        linear.conv_kernel_size[0] = state.conv.shape[1]
        linear.is_conv_states_initialized[0] = True
    return linear


def signature(config: VarlaConfig) -> Signature:
    """(mechanism, its options) of every layer: models with equal ones can read each other's states."""
    described = {
        name: ", ".join(f"{key}={value}" for key, value in config.layer_options(name).items())
        for name in set(config.layer_mechanisms)
    }
    return tuple((name, described[name]) for name in config.layer_mechanisms)


def tokens_seen(cache: VarlaCache | None) -> int:
    """Tokens that each row of the cache has seen, padding included; 0 for None, a TypeError for other caches."""
    if cache is None:
        return 0
    if not isinstance(cache, VarlaCache):
        raise TypeError(
            f"past_key_values must be a VarlaCache, as VarlaCache(model.config) makes it, got {type(cache).__name__}"
        )
    return cache.tokens
