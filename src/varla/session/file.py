"""A session as one safetensors file: its tensors, and a header with JSON about its model.

    logits [V]      position [1]      text [32]      layers.I.conv, layers.I.NAME for every tensor of a layer's state

Numbers that grow are tensors, so that the header's length is constant. `text` holds the decoder's tokens, some of which
wait for the rest of a character: how many were decoded already, the tokens, then -1. Reading runs no code of it.
"""

import hashlib
import json
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import safetensors
import torch
from torch import Tensor

from varla.files import digest
from varla.layers import LayerState, ModelState
from varla.ops.state import write_safetensors
from varla.session.text import Decoder

if TYPE_CHECKING:
    from varla.models import VarlaCache, VarlaForCausalLM

FORMAT = "varla session"
VERSION = "2"
_TEXT = 32  # numbers in `text`: more than the decoder ever holds
_SAMPLE = 1024  # about how many numbers of each weight are compared before a digest is reused
# Tensors that autocast may round. Those of recurrent states keep their type.
_ROUNDED = {"logits", "conv", "k", "v"}
_AUTOCAST = {torch.bfloat16, torch.float16}
# Settings that do not affect a state.
_FREE = {
    "initializer_range", "max_position_embeddings", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id",
}  # fmt: skip


@dataclass(frozen=True)
class Content:
    """The content of a file; logits and decoder are None where there are none yet."""

    cache: "VarlaCache"
    logits: Tensor | None
    decoder: Decoder | None


def save(path: str | os.PathLike[str], model: "VarlaForCausalLM", content: Content) -> None:
    """Write the file, whole or not at all."""
    check_target(path)
    tensors = {"position": torch.tensor([content.cache.tokens]), "text": _pack(content.decoder)}
    if content.logits is not None:
        tensors["logits"] = content.logits
    if content.cache.state is not None:
        tensors |= content.cache.state.tensors()
        del tensors["t"]  # every layer has its own
    tensors = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "config": json.dumps(settings(model), sort_keys=True),
        "weights": weights(model),
        "checksum": digest(tensors),
    }
    write_safetensors(path, tensors, metadata)


def check_target(path: str | os.PathLike[str]) -> None:
    """Raise unless a session may be written there: the folder exists, and any file there is a saved session."""
    target = Path(path)
    if not target.parent.is_dir():
        raise ValueError(f"{target} cannot be written: {target.parent} is not a folder")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"{target} cannot be written: {target.parent} does not allow it")
    if target.is_dir():
        raise ValueError(f"{target} is a folder: a session is saved to a file")
    if not target.exists():
        return
    try:
        with safetensors.safe_open(target, framework="pt") as file:
            found = (file.metadata() or {}).get("format")
    except (safetensors.SafetensorError, OSError):
        found = None
    if found != FORMAT:
        raise ValueError(f"{target} is there and is not a saved session: it is not written over")


def load(path: str | os.PathLike[str], model: "VarlaForCausalLM", tokenizer: Any) -> Content:
    """Read a file that `save` wrote for this model."""
    metadata, tensors = _open(path)
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a saved session, but another safetensors file")
    if (version := metadata.get("version")) != VERSION:
        raise ValueError(f"{path} has session version {version!r}, this varla reads {VERSION!r}: feed the tokens again")
    try:
        theirs = dict(json.loads(metadata["config"]))
        checksum, their_weights = metadata["checksum"], metadata["weights"]
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: its header cannot be read") from error
    _check_same(path, theirs, settings(model))
    if their_weights != weights(model):
        raise ValueError(
            f"{path} is the state of another model: its settings are this model's, but its weights differ (trained "
            "further, another seed, or another dtype)"
        )
    if checksum != digest(tensors):
        raise ValueError(f"{path} is damaged: its tensors are not those that were saved")
    return _content(path, model, tokenizer, tensors)


def settings(model: "VarlaForCausalLM") -> dict[str, Any]:
    """The settings that affect a state, as JSON reads them back."""
    from varla.models import VarlaConfig

    config = model.config
    found = {name: getattr(config, name) for name in VarlaConfig.__annotations__ if name not in _FREE}
    found["mechanisms"] = config.layer_mechanisms
    return dict(json.loads(json.dumps(found)))


def weights(model: "VarlaForCausalLM") -> str:
    """The digest of all weights, computed once and again after they have changed."""
    held = model.state_dict()
    now = _fingerprint(held)
    known = _digests.get(model)
    if known is None or now is None or known[0] != now:
        known = _digests[model] = now, digest(held)
    return known[1]


_digests: "weakref.WeakKeyDictionary[VarlaForCausalLM, tuple[str | None, str]]" = weakref.WeakKeyDictionary()


@torch.no_grad()
def _fingerprint(held: Mapping[str, Tensor]) -> str | None:
    """A fast fingerprint of the weights: if it differs, they may have changed. None: changes cannot be detected.

    PyTorch counts the changes of a tensor, but not those through `.data` or NumPy. The sample finds these, unless they
    are of a few numbers only. Changes of inference tensors are not counted at all.
    """
    if any(x.is_inference() for x in held.values()):
        return None
    found = hashlib.blake2b(digest_size=16)
    for name, x in held.items():
        flat = x.detach().flatten()
        sample = flat[:: max(1, flat.shape[0] // _SAMPLE)].cpu().contiguous()
        found.update(f"{name} {x.dtype} {list(x.shape)} {x.device} {x.data_ptr()} {x._version} ".encode())
        found.update(sample.view(torch.uint8).numpy().data)
    return found.hexdigest()


def _check_same(path: str | os.PathLike[str], theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    different = [name for name in sorted({*theirs, *ours}) if theirs.get(name) != ours.get(name)]
    if different:
        listed = "; ".join(f"{name} is {theirs.get(name)!r} there, {ours.get(name)!r} here" for name in different[:3])
        more = f"; and {len(different) - 3} more" if len(different) > 3 else ""
        raise ValueError(f"{path} is the state of another model: {listed}{more}")


def _open(path: str | os.PathLike[str]) -> tuple[dict[str, str], dict[str, Tensor]]:
    if os.path.isdir(path):
        raise ValueError(f"{path} is a folder, not a saved session")
    if not os.path.exists(path):
        raise ValueError(f"{path} is not there")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            # Copies: the file's memory map would follow whatever is written to the file later.
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return dict(file.metadata() or {}), tensors
    except (safetensors.SafetensorError, OSError) as error:
        raise ValueError(f"{path} is not a saved session, or was cut short: {error}") from error


def _content(
    path: str | os.PathLike[str], model: "VarlaForCausalLM", tokenizer: Any, tensors: dict[str, Tensor]
) -> Content:
    """The tensors as a state of this model; an error if they do not fit."""
    from varla.models import VarlaCache

    cache = VarlaCache(model.config)
    position = _take(path, tensors, "position", [1], torch.int64)
    text = _take(path, tensors, "text", [_TEXT], torch.int64)
    tokens = int(position)
    logits = None
    if tokens:
        like, logits_like = _template(model)
        logits = _take(path, tensors, "logits", list(logits_like.shape), logits_like.dtype).to(model.device)
        states = []
        for i, state in enumerate(like):
            found = {
                name: _take(path, tensors, f"layers.{i}.{name}", _shape(state, name, x, tokens), x.dtype)
                for name, x in state.tensors().items()
            }
            if found["t"].tolist() != [tokens]:
                raise ValueError(f"{path} is damaged: layer {i} has seen {found['t'].tolist()} tokens, not {tokens}")
            found = {name: x.to(model.device) for name, x in found.items()}
            conv = found.pop("conv", None)
            states.append(LayerState(conv, state.memory.of(found.values())))
        cache.write(states, tokens)
    if tensors:
        raise ValueError(f"{path} is damaged: it holds {min(tensors)!r}, which no session has")
    return Content(cache, logits, _unpack(path, text, model.get_input_embeddings().num_embeddings, tokenizer))


def _template(model: "VarlaForCausalLM") -> tuple[list[LayerState], Tensor]:
    """(states, logits [V]) after one token, as examples of their classes, shapes and types."""
    from varla.models import VarlaCache

    cache = VarlaCache(model.config)
    with torch.no_grad(), torch.autocast(model.device.type, enabled=False):
        out = model(torch.zeros(1, 1, dtype=torch.int64, device=model.device), past_key_values=cache, use_cache=True)
    state = cast("ModelState", cache.state)
    return state.layers, out.logits[0, -1]


def _shape(state: LayerState, name: str, like: Tensor, tokens: int) -> list[int]:
    """The shape after this many tokens: dimension L of a layout is their number."""
    letters = state.memory.LAYOUT.get(name, "").split()
    return [tokens if i < len(letters) and letters[i] == "L" else size for i, size in enumerate(like.shape)]


def _take(
    path: str | os.PathLike[str], tensors: dict[str, Tensor], name: str, shape: list[int], dtype: torch.dtype
) -> Tensor:
    """Remove a tensor of this shape and type, or of a type that autocast may have rounded it to."""
    found = tensors.pop(name, None)
    if found is None:
        raise ValueError(f"{path} is damaged: {name} is missing")
    if name.endswith(".z") and found.dtype == torch.float32:  # as in files of earlier versions
        found = found.to(dtype)
    allowed = {dtype, *_AUTOCAST} if name.rpartition(".")[2] in _ROUNDED else {dtype}
    if list(found.shape) != shape or found.dtype not in allowed:
        raise ValueError(
            f"{path} does not fit the model: {name} must be {dtype} {shape}, got {found.dtype} {list(found.shape)}"
        )
    return found


def _pack(decoder: Decoder | None) -> Tensor:
    if decoder is None:
        return torch.full((_TEXT,), -1)
    held = [decoder.known, *decoder.ids]
    return torch.tensor(held + [-1] * (_TEXT - len(held)))


def _unpack(path: str | os.PathLike[str], text: Tensor, words: int, tokenizer: Any) -> Decoder | None:
    known, *ids = (each for each in text.tolist() if each >= 0) if int(text[0]) >= 0 else (-1,)
    if known > len(ids) or any(each >= words for each in ids):
        raise ValueError(f"{path} is damaged: its text cannot be continued")
    return None if known < 0 or tokenizer is None else Decoder(tokenizer, ids, known)
