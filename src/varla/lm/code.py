"""Code in folders of models, tokenizers, datasets and tasks: found and described, so that it can be refused.

Transformers and the harness can run Python that such a folder brings along. Here nothing runs it: every call passes
`trust_remote_code=False`, and the folder is refused before, with an error that says what it holds.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

NEVER = "which is never run"
# Files in which transformers reads the names of a folder's own classes.
_SETTINGS = (
    "config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json",
    "preprocessor_config.json",
)  # fmt: skip
_GENERATE = "custom_generate/generate.py"
_SHOWN = 120  # characters of a setting


def code_in_model(folder: Path) -> str | None:
    """The code that the folder of a model or tokenizer brings along, in words; None if there is none.

    Python files that no setting names are ignored: nothing reads them.
    """
    named = [words for file in _SETTINGS for words in _named(folder / file)]
    if (folder / _GENERATE).exists():
        named.append(f"{_GENERATE} would replace generate()")
    if not named:
        return None
    files = sorted(path.name for path in folder.glob("*.py"))
    held = f"; its Python files: {', '.join(files[:5])}{' and more' if len(files) > 5 else ''}" if files else ""
    return f"brings its own Python code, {NEVER}: {'; '.join(named)}{held}"


def code_in_dataset(name: str) -> str | None:
    """The loading script of a dataset's file or folder, in words; None if there is none."""
    path = Path(name)
    script = path if path.suffix == ".py" else path / f"{path.name}.py"
    if not script.is_file():
        return None
    return f"is loaded by a Python script, {NEVER}: {script}. Save its data as JSON lines, CSV or Parquet"


def code_in_tasks(folder: Path, own: Path) -> str | None:
    """The code that tasks for the harness in a folder want to run, in words; None if they are data.

    The harness reads all .yaml files below the folder and the files that they include. Those below `own`, its own
    tasks, are trusted: they are part of an installed package.
    """
    waiting, seen = sorted(folder.rglob("*.yaml")), set()
    while waiting:
        file = waiting.pop().resolve()
        if file in seen or file.is_relative_to(own.resolve()):
            continue
        seen.add(file)
        try:
            held = yaml.safe_load(file.read_bytes())
        except yaml.constructor.ConstructorError as error:  # a tag, such as !function
            what = str(error.problem).removeprefix("could not determine a constructor for the tag ")
            return f"holds tasks with Python code, {NEVER}: {file} has {what}"
        except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
            return f"holds a task that cannot be read: {file}: {_short(str(error))}"
        for key, value in _settings(held):
            if key == "use_prompt":
                return f"holds a task with use_prompt, which is not supported: {file}"
            if key == "dataset_path" and (code := code_in_dataset(str(value))):
                return f"holds a task whose dataset {code} ({file})"
            if key == "include":
                waiting += [file.parent / str(each) for each in (value if isinstance(value, list) else [value])]
    return None


def _named(file: Path) -> Iterator[str]:
    """What the settings in a file want to run. A file that is no JSON is left to transformers to report."""
    try:
        held = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return
    for key, value in _settings(held):
        if key == "auto_map":
            yield f"{file.name} names {_short(value)} (auto_map)"
        elif "attn_implementation" in key and "/" in str(value):
            yield f"{file.name} names {_short(value)} ({key}, a kernel from the hub)"


def _settings(held: Any) -> Iterator[tuple[str, Any]]:
    """(key, value) of every object in JSON or YAML data, those inside others too."""
    waiting, seen = [held], set()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:  # YAML's aliases
            continue
        seen.add(id(found))
        if isinstance(found, dict):
            yield from ((str(key), value) for key, value in found.items())
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
