"""The configuration of a model. Names are Hugging Face's where it has one; the settings of this family come first."""

import difflib
import functools
import logging
from collections.abc import Mapping
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig

from varla.arguments import check_count, check_flag, check_number, refuse_unknown
from varla.layers import MECHANISMS, build, options_of
from varla.layers.options import LONG_NAMES

# Settings of other families that these models do not have, or have under another name.
_ELSEWHERE = {
    "rope_parameters": "give rope_theta",
    "rope_scaling": "give rope_theta",
    "num_key_value_heads": "every head has its own keys and values",
    "num_heads": "it is num_attention_heads",
    "num_layers": "it is num_hidden_layers",
    "attention_bias": "projections have no bias",
    "mlp_bias": "projections have no bias",
    "attention_dropout": "there is no dropout",
    "hidden_dropout": "there is no dropout",
    "sliding_window": "softmax layers look at everything",
}
_NEAR = 0.7  # an unknown name this similar to one of ours is taken for a misspelling
# Transformers' own settings that are no fields of its class, and what it lets a model's settings say about `generate`.
_GENERAL = {"attn_implementation", "experts_implementation", "output_attentions", *GenerationConfig().to_dict()}
# Written into config.json for its readers: without this import, transformers' Auto classes do not know the family.
_NEEDS = 'import varla.models (pip install "varla[hf]", or ".[hf]" in a clone of varla)'


class VarlaConfig(PreTrainedConfig):  # type: ignore[misc]
    """Configuration of `VarlaModel` and `VarlaForCausalLM`. A wrong value is an error when the configuration is made.

    So is an unknown name that looks like one of these. In a file or a dict with a `model_type`, as transformers writes
    them, and when it is set later, such a name is kept, with one warning: many tools add their own.

    Settings that the lab has, too, may be given and read by its short names: d_model, n_layers, n_heads, ffn, max_len,
    conv, norm_eps, rotary (`varla.layers.options`).

    Args:
        mechanisms: one of `varla.layers.MECHANISMS` for all layers, or a list with one for each layer.
        mechanism_options: options by mechanism, e.g. {"vla": {"update_penalty": False}}. `varla.layers.build` gets
            them on top of what the other settings here say.
        short_conv: width of the short convolution before each mixer. None: no convolution.
        output_norm: norm over the merged heads: "rms", "layer" or "none".
        output_norm_eps: its epsilon. Far below `rms_norm_eps`, because its inputs shrink: VLA writes errors, and
            divides its outputs by a sum over all tokens seen.
        output_gate: multiply the norm's output by silu of a projection of the mixer's input.
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads, intermediate_size: sizes. The feed-forward is
            SwiGLU.
        head_dim: of queries, keys and values. None: hidden_size / num_attention_heads.
        rms_norm_eps: epsilon of the norms between the blocks' parts.
        initializer_range: standard deviation of all initial weights except those of convolutions. Residual output
            projections are scaled by 1 / sqrt(2 num_hidden_layers), because their outputs add up.
        embedding_multiplier: factor of the token embeddings. None: sqrt(hidden_size), which makes an embedding as
            large at the start as the sum of all layers' outputs. At 1 that sum would hide it.
        tie_word_embeddings: the output head shares the embedding's weights.
        rope_theta: base of the softmax layers' rotary positions. None: no positions.
        max_position_embeddings: the length that the model was trained for. It is no limit: the model reads on beyond
            it, and transformers logs a line when `generate` does.
        use_cache: return a cache, except in training.
        bos_token_id, eos_token_id, pad_token_id: as everywhere.
    """

    model_type = "varla"
    attribute_map = dict(LONG_NAMES)  # noqa: RUF012 - config.d_model is config.hidden_size, to give and to read
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012

    mechanisms: str | list[str] = "vla"
    mechanism_options: dict[str, dict[str, Any]] | None = None
    short_conv: int | None = 4
    output_norm: str = "rms"
    output_norm_eps: float = 1e-20
    output_gate: bool = False
    vocab_size: int = 32000
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    head_dim: int | None = None
    intermediate_size: int = 2048
    rms_norm_eps: float = 1e-6
    initializer_range: float = 0.02
    embedding_multiplier: float | None = None
    tie_word_embeddings: bool = True
    rope_theta: float | None = 10000.0
    max_position_embeddings: int = 2048
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **others: Any) -> None:
        """Check everything. `others` are transformers' own settings, and unknown ones, which it keeps."""
        others.pop("needs", None)
        self._check_names(others)
        self._check_dtype(others.get("torch_dtype"))
        if self.mechanism_options is None:
            self.mechanism_options = {}
        super().__post_init__(**others)
        self.check()
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in transformers, but the settings of another family are an error; transformers would only warn."""
        found = config_dict.get("model_type", cls.model_type)
        if found != cls.model_type:
            raise ValueError(
                f"this is the configuration of a {found!r} model, not of a {cls.model_type!r} one; "
                "transformers.AutoModelForCausalLM loads any family"
            )
        return super().from_dict({**config_dict, "model_type": found}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """As in transformers, and what to import before the Auto classes know the family."""
        return {**super().to_dict(), "needs": _NEEDS}

    def __setattr__(self, name: str, value: Any) -> None:
        """Set anything; warn of an unknown name that looks like a setting."""
        if not (name in self.__dict__ or hasattr(type(self), name)) and (slip := _slip(name, value, self)):
            _warn_once(slip)
        super().__setattr__(name, value)

    def check(self) -> None:
        """Raise a ValueError or TypeError that names the first wrong setting. Models call it again."""
        sizes = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
        for name in (*sizes, "max_position_embeddings"):
            check_count(name, getattr(self, name))
        check_count("head_dim", self.head_dim, none_means="hidden_size / num_attention_heads")
        check_count("short_conv", self.short_conv, none_means="no convolution")
        for name in ("rms_norm_eps", "output_norm_eps", "initializer_range"):
            check_number(name, getattr(self, name), above=0)
        for name in ("embedding_multiplier", "rope_theta"):
            check_number(name, getattr(self, name), above=0, or_none=True)
        for name in ("output_gate", "tie_word_embeddings", "use_cache"):
            check_flag(name, getattr(self, name))
        self._check_token_ids()
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads must divide hidden_size = {self.hidden_size} unless head_dim is given, "
                f"got {self.num_attention_heads}"
            )
        self._check_mechanisms()

    @property
    def layer_mechanisms(self) -> list[str]:
        """The mechanism of every layer."""
        return [self.mechanisms] * self.num_hidden_layers if isinstance(self.mechanisms, str) else list(self.mechanisms)

    def layer_options(self, mechanism: str) -> dict[str, Any]:
        """The arguments of `varla.layers.build` for a layer of this mechanism."""
        names = ["d_model", "n_heads", "head_dim", "conv", "output_norm", "norm_eps", "output_gate"]
        if mechanism == "softmax":
            names.append("rotary")
        options = {name: getattr(self, name) for name in names}
        return {**options, "bias": False, **(self.mechanism_options or {}).get(mechanism, {})}

    def _check_mechanisms(self) -> None:
        if not isinstance(self.mechanisms, (str, list, tuple)):
            raise TypeError(f"mechanisms must be a name or a list of names, got {self.mechanisms!r}")
        if not isinstance(self.mechanisms, (str, list)):
            self.mechanisms = list(self.mechanisms)  # as JSON reads it back
        names = self.layer_mechanisms
        if len(names) != self.num_hidden_layers:
            raise ValueError(
                f"mechanisms must be one name, or one for each of num_hidden_layers = {self.num_hidden_layers} layers, "
                f"got {len(names)}: {names}"
            )
        for name in names:
            refuse_unknown("mechanism", name, MECHANISMS)
        given = self.mechanism_options
        if not isinstance(given, Mapping) or not all(isinstance(options, Mapping) for options in given.values()):
            raise TypeError(f'mechanism_options must be options by mechanism, as {{"vla": {{}}}}, got {given!r}')
        for name, options in given.items():
            refuse_unknown("mechanism", name, MECHANISMS, where=" in mechanism_options")
            for option in options:
                refuse_unknown(
                    f"option of {name!r}", option, options_of(MECHANISMS[name]), where=" in mechanism_options"
                )
        for name in {*names, *given}:
            with torch.device("meta"):  # the layer checks the values; nothing is allocated
                build(name, **self.layer_options(name))

    def _check_token_ids(self) -> None:
        for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
            value = getattr(self, name)
            for each in value if isinstance(value, list) and name == "eos_token_id" else [value]:
                check_count(name, each, least=0, none_means="none")
                if each is not None and each >= self.vocab_size:
                    raise ValueError(f"{name} must be below vocab_size = {self.vocab_size}, got {each}")

    def _check_dtype(self, before: object) -> None:
        """The weights' type, or its name as in config.json. `before` is the key that transformers 4 wrote."""
        given = before if self.dtype is None else self.dtype
        found = getattr(torch, given, None) if isinstance(given, str) else given
        if given is not None and not isinstance(found, torch.dtype):
            raise ValueError(f"dtype must be a type of PyTorch's, as 'float32' or 'bfloat16', got {given!r}")

    def _check_names(self, others: Mapping[str, Any]) -> None:
        """Refuse two names for one setting, and slips. A dict with a model_type was not typed by hand: only warn."""
        for name, value in others.items():
            if name in LONG_NAMES:
                long = LONG_NAMES[name]
                if getattr(self, long) not in (value, getattr(VarlaConfig, long)):
                    raise ValueError(f"{name} and {long} are the same setting: give one of them")
            elif slip := _slip(name, value, self):
                if "model_type" not in others:
                    raise ValueError(slip)
                _warn_once(slip)


def _slip(name: str, value: Any, config: VarlaConfig) -> str | None:
    """The error message for an unknown name that is another family's or looks like one of ours; None for all others."""
    if name in _ELSEWHERE:
        harmless = not value or (name == "num_key_value_heads" and value == config.num_attention_heads)
        return None if harmless else f"unknown setting {name!r}: {_ELSEWHERE[name]}"
    if name.startswith("_") or name in _GENERAL or name in LONG_NAMES or hasattr(PreTrainedConfig, name):
        return None
    ours = [each for each in VarlaConfig.__annotations__ if not each.endswith("_token_id")]
    near = difflib.get_close_matches(name, ours, n=1, cutoff=_NEAR)
    return f"unknown setting {name!r}; did you mean {near[0]!r}?" if near else None


@functools.cache
def _warn_once(slip: str) -> None:
    logging.getLogger(__name__).warning("VarlaConfig keeps an %s", slip)
