"""A trained model's folder: configuration, weights and tokenizer, as `save_pretrained` writes them."""

import json
from pathlib import Path
from typing import Any

import torch

from varla.box import model_folder, names_hint
from varla.lm.code import code_in_model
from varla.models import VarlaForCausalLM


class FolderError(ValueError):
    """The folder holds no usable model. The message says why."""


def load_model(folder: str | Path) -> VarlaForCausalLM:
    """The model in a folder, or one in the box by its name, "tiny". Nothing is downloaded, unpickled or run."""
    folder = model_folder(folder)
    if not folder.is_dir():
        raise FolderError(f"{folder} is not a folder with a model{names_hint(folder)}")
    if not (folder / "config.json").is_file():
        hint = f"; did you mean {folder / 'model'}?" if (folder / "model" / "config.json").is_file() else ""
        raise FolderError(f"{folder} holds no model: there is no config.json in it{hint}")
    _refuse_code(folder)
    try:
        _check_settings(folder / "config.json")
        found: VarlaForCausalLM = VarlaForCausalLM.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, trust_remote_code=False
        )
    except Exception as error:  # what transformers raises depends on how the files are wrong
        raise FolderError(f"{folder} cannot be loaded as a model: {_first_line(error)}") from error
    return found


def load_folder(folder: str | Path, device: str | torch.device = "cpu") -> tuple[VarlaForCausalLM, Any]:
    """(model, tokenizer) in a folder, or those of a model in the box by its name, "tiny"."""
    from transformers import AutoTokenizer

    folder = model_folder(folder)
    model = load_model(folder)
    if not any((folder / name).is_file() for name in ("tokenizer_config.json", "tokenizer.json")):
        raise FolderError(f"{folder} holds no tokenizer: there is no tokenizer_config.json in it")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # its parser raises plain Exceptions
        raise FolderError(f"{folder} holds a tokenizer that cannot be loaded: {_first_line(error)}") from error
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise FolderError(f"{folder}: its tokenizer has {len(tokenizer)} tokens, its model embeddings for {known}")
    return model.eval().to(device), tokenizer


def _refuse_code(folder: Path) -> None:
    """Raise before transformers could ask whether to run a folder's code, or unpickle its weights."""
    if found := code_in_model(folder):
        raise FolderError(f"{folder} {found}")
    pickled = sorted(path.name for path in folder.glob("*.bin") if path.name.startswith("pytorch_model"))
    if pickled and not any(folder.glob("*.safetensors")):
        raise FolderError(f"{folder} holds pickled weights, {pickled[0]}: only safetensors files are read")


def _check_settings(file: Path) -> None:
    """Refuse JSON that is not an object. Transformers reports invalid JSON itself, but assumes an object."""
    try:
        found = json.loads(file.read_bytes())
    except ValueError:
        return
    if not isinstance(found, dict):
        raise ValueError(f"its {file.name} holds no settings, but a {type(found).__name__}")


def _first_line(error: Exception) -> str:
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    speaks = first and isinstance(error, (OSError, ValueError, TypeError, RuntimeError))
    return first if speaks else f"{type(error).__name__} {first}".strip()
