"""What a model of the family remembers between calls, as a cache of transformers."""

from typing import Any

from torch import Tensor
from transformers import Cache

from varla.layers import LayerState
from varla.models.configuration import VarlaConfig

Signature = tuple[tuple[str, str], ...]


class VarlaCache(Cache):  # type: ignore[misc]
    """The state of every layer: of constant size for all mechanisms but softmax, whose keys and values grow.

        cache = VarlaCache(model.config)
        model(input_ids, past_key_values=cache)     # reads and updates it

    Transformers' own caches keep lists of keys and values, or one tensor a layer; this one keeps `LayerState`s, and
    answers what `generate` asks. It cannot be shortened: a recurrent state does not hold its own past.
    """

    def __init__(self, config: VarlaConfig):
        """An empty cache for models of this configuration."""
        if not isinstance(config, VarlaConfig):
            raise TypeError(f"config must be a VarlaConfig, got {type(config).__name__}")
        super().__init__(layers=[])
        self.made_for = signature(config)
        self.states: list[LayerState | None] = [None] * config.num_hidden_layers
        self.tokens = 0

    def read(self, wanted: Signature, rows: int) -> list[LayerState | None]:
        """The states, for a model of this signature and so many rows; a ValueError if they are not for those."""
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
        return self.states

    def write(self, states: list[LayerState | None], tokens: int) -> None:
        """Keep the states after `tokens` more tokens a row, padding among them."""
        self.states = states
        self.tokens += tokens

    @property
    def nbytes(self) -> int:
        """Bytes of all states together."""
        return sum(state.nbytes for state in self.states if state is not None)

    def clone(self) -> "VarlaCache":
        """A cache that shares no memory with this one: to go on in two ways."""
        copy = self._empty()
        copy.write([None if state is None else state.clone() for state in self.states], self.tokens)
        return copy

    def detach(self) -> "VarlaCache":
        """A cache of the same tensors, cut from the autograd graph."""
        copy = self._empty()
        copy.write([None if state is None else state.detach() for state in self.states], self.tokens)
        return copy

    def _empty(self) -> "VarlaCache":
        copy = VarlaCache.__new__(VarlaCache)
        Cache.__init__(copy, layers=[])
        copy.made_for, copy.tokens = self.made_for, 0
        return copy

    # What transformers asks of a cache. Its own answers look at `layers`, and there are none.

    def __len__(self) -> int:
        """The number of layers; 0 would make an `if cache:` take it for no cache."""
        return len(self.made_for)

    def __repr__(self) -> str:
        """In short: the states are long."""
        return (
            f"VarlaCache({len(self)} layers, {max(self.batch_size, 0)} rows, {self.tokens} tokens, {self.nbytes} bytes)"
        )

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens that each row went through, padding among them, as `generate` counts them."""
        return self.tokens

    def get_mask_sizes(self, query_length: Any, layer_idx: int = 0) -> tuple[int, int]:
        """(length, offset) of a mask over past and present."""
        length = query_length if isinstance(query_length, int) else query_length.shape[0]
        return self.tokens + length, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """-1: there is none."""
        return -1

    @property
    def batch_size(self) -> int:
        """Rows; -1 before the first call."""
        first = self.states[0]
        return -1 if first is None else int(first.memory.tensors()["t"].shape[0])

    @property
    def is_compileable(self) -> bool:
        """No: softmax layers grow, and nothing is updated in place."""
        return False

    @property
    def is_initialized(self) -> bool:
        """Whether there are states yet."""
        return self.states[0] is not None

    @property
    def is_croppable(self) -> bool:
        """No."""
        return False

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
        self.states = [None] * len(self)
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

    def _map(self, function: Any) -> None:
        self.states = [None if state is None else state.map(function) for state in self.states]

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


def signature(config: VarlaConfig) -> Signature:
    """(mechanism, its options) of every layer: models with equal ones can read each other's states."""
    described = {
        name: ", ".join(f"{key}={value}" for key, value in config.layer_options(name).items())
        for name in set(config.layer_mechanisms)
    }
    return tuple((name, described[name]) for name in config.layer_mechanisms)


def check_cache(cache: object) -> None:
    """Raise a TypeError unless this is a cache of the family."""
    if not isinstance(cache, VarlaCache):
        raise TypeError(
            f"past_key_values must be a VarlaCache, as VarlaCache(model.config) makes it, got {type(cache).__name__}"
        )
