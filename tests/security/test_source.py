"""The source itself: nothing in it loads a model, a tokenizer or a dataset without saying that no code is to be run."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
FOLDERS = ("src", "reproduction", "benchmarks", "examples")
LOADERS = {"from_pretrained", "load_dataset", "from_config", "pipeline"}
# Calls and modules that can run what they read.
FORBIDDEN = {"eval", "exec", "unsafe_load", "full_load", "yaml.load", "torch.load", "pickle.load", "pickle.loads"}
MODULES = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
# A class that passes its caller's own keywords on: (file, call).
PASSED_ON = {("src/varla/models/pretrained.py", "super().from_pretrained")}


def unsafe(path, source):
    """What a module does that could run code from data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            yield from _call(path, node)
        elif isinstance(node, ast.Import):
            yield from (f"{path}:{node.lineno} imports {each.name}" for each in node.names if each.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            taken = [each.name for each in node.names if each.name != "UnpicklingError"]
            yield from (f"{path}:{node.lineno} imports {node.module}.{name}" for name in taken)


def _call(path, node):
    name = ast.unparse(node.func)
    last = name.rpartition(".")[2]
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    trusted = keywords.get("trust_remote_code")
    refuses = isinstance(trusted, ast.Constant) and trusted.value is False
    if (last in LOADERS and (path, name) not in PASSED_ON and not refuses) or (trusted is not None and not refuses):
        yield f"{path}:{node.lineno} {name} without trust_remote_code=False"
    pickled = keywords.get("allow_pickle") or keywords.get("weights_only")
    if name in FORBIDDEN or last in FORBIDDEN - {"eval", "exec"} or pickled is not None:
        yield f"{path}:{node.lineno} {name}"


def test_nothing_in_the_source_runs_what_it_loads():
    modules = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert len(modules) > 150
    found = [
        each for path in modules for each in unsafe(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "AutoTokenizer.from_pretrained(name)",
        "AutoTokenizer.from_pretrained(name, trust_remote_code=None)",
        "AutoTokenizer.from_pretrained(name, trust_remote_code=trust)",
        "datasets.load_dataset(name, **options)",
        "HFLM(model, trust_remote_code=True)",
        "super().from_pretrained(name)",
        "torch.load(path)",
        "yaml.load(text, Loader)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "import pickle",
        "from pickle import loads",
    ],
)
def test_what_would_be_found(source):
    assert list(unsafe("src/varla/lm/folder.py", source))


@pytest.mark.parametrize(
    "source",
    [
        "AutoTokenizer.from_pretrained(name, trust_remote_code=False)",
        "model.eval()",
        "yaml.safe_load(text)",
        "np.load(path)",
        "from pickle import UnpicklingError",
    ],
)
def test_what_is_allowed(source):
    assert not list(unsafe("src/varla/lm/folder.py", source))
