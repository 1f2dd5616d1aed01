"""Folders with models that cannot be used, and what is said of each."""

import json
import shutil

from transformers import ByT5Tokenizer

from tests.session.cases import save, tiny


def change(file, **values):
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def _without(name):
    return lambda folder: (folder / name).unlink()


def _cut(name, size):
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def _config(**values):
    return lambda folder: change(folder / "config.json", **values)


def _other_weights(folder):
    tiny("linear").save_pretrained(folder / "other")
    shutil.move(folder / "other" / "model.safetensors", folder / "model.safetensors")


def _larger_tokenizer(folder):
    ByT5Tokenizer(extra_ids=7).save_pretrained(folder)


def _pickled(folder):
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"no weights")


def _run(folder):
    save(folder / "model", tiny())
    (folder / "config.json").unlink()


# name: (what is done to the folder, words of the error)
DAMAGES = {
    "no folder": (shutil.rmtree, ["not a folder"]),
    "no config": (_without("config.json"), ["holds no model", "config.json"]),
    "the run instead": (_run, ["did you mean", "model"]),
    "no weights": (_without("model.safetensors"), ["cannot be loaded", "model.safetensors"]),
    "no tokenizer": (_without("tokenizer_config.json"), ["holds no tokenizer"]),
    "cut weights": (_cut("model.safetensors", 1000), ["cannot be loaded", "weights cannot be read"]),
    "empty weights": (_cut("model.safetensors", 0), ["cannot be loaded"]),
    "pickled weights": (_pickled, ["pytorch_model.bin", "only safetensors files are read"]),
    "an unknown type": (_config(dtype="floaty"), ["cannot be loaded", "dtype must be a type of PyTorch's", "'floaty'"]),
    "settings that lead transformers astray": (_config(id2label=5), ["cannot be loaded", "AttributeError"]),
    "cut config": (_cut("config.json", 50), ["cannot be loaded", "config.json"]),
    "a list for a config": (
        lambda folder: (folder / "config.json").write_text("[1]"),
        ["config.json holds no settings"],
    ),
    "fewer layers": (_config(num_hidden_layers=1), ["cannot be loaded", "weights that this VarlaForCausalLM has not"]),
    "cut tokenizer": (_cut("tokenizer_config.json", 20), ["tokenizer that cannot be loaded"]),
    "another family": (_config(model_type="llama"), ["cannot be loaded", "'llama'"]),
    "other shapes": (_config(hidden_size=32), ["cannot be loaded"]),
    "other weights": (_other_weights, ["cannot be loaded", "missing"]),
    "wrong settings": (_config(num_hidden_layers=0), ["cannot be loaded", "num_hidden_layers"]),
    "larger tokenizer": (_larger_tokenizer, ["266 tokens", "259"]),
}
