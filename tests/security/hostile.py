"""Folders whose Python leaves a mark when it is run."""

import json

from tests.session.cases import save, tiny

CODE = """
from pathlib import Path
from transformers import {base}

Path({mark!r}).write_text("ran")

class Theirs({base}):
    pass
"""
# Where code can be named: (file, what it says, base of the class).
NAMES = {
    "tokenizer": ("tokenizer_config.json", {"AutoTokenizer": ["theirs.Theirs", None]}, "ByT5Tokenizer"),
    "fast tokenizer": ("tokenizer_config.json", {"AutoTokenizer": [None, "theirs.Theirs"]}, "ByT5Tokenizer"),
    "old form of a tokenizer": ("tokenizer_config.json", ["theirs.Theirs", None], "ByT5Tokenizer"),
    "tokenizer of the hub": ("tokenizer_config.json", {"AutoTokenizer": ["who/what--theirs.Theirs", None]}, "object"),
    "model": ("config.json", {"AutoModelForCausalLM": "theirs.Theirs"}, "PreTrainedModel"),
    "configuration": ("config.json", {"AutoConfig": "theirs.Theirs"}, "PretrainedConfig"),
}


def change(file, drop=(), **values):
    held = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({key: value for key, value in held.items() if key not in drop}))


def folder(path, kind):
    """(a folder with a model, the file that appears when its code is run)."""
    save(path, tiny())
    mark = path.parent / "mark"
    file, names, base = NAMES[kind]
    code = CODE.format(base=base, mark=str(mark))
    (path / "theirs.py").write_text(code)
    # Without the class that transformers knows, it would ask whether to run the folder's.
    change(path / file, drop=["tokenizer_class"], auto_map=names)
    return path, mark
