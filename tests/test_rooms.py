"""The import order: a room of the package imports itself and the rooms below it, never one above.

Every import counts, also those inside functions and under TYPE_CHECKING.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "varla"

# Folders and modules of the package, from the bottom up. Rooms on one line do not import each other.
ROOMS = (
    "arguments box files",
    "ops runs",
    "layers",
    "backbone",
    "models",
    "parallel session tasks",
    "training",
    "lm report watch",
    "demo doctor",
    "cli",
    "__init__ __main__",
)
LEVEL = {room: level for level, line in enumerate(ROOMS) for room in line.split()}
# These use the package; it never uses them.
BESIDE = {"benchmarks", "evaluation", "examples", "reproduction", "tests"}


def imports(source, package):
    """Full names of the modules, and of what is taken from them, that the source of a module in `package` imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def room_of(name):
    """The room of a full name; None outside the package and for the names that `varla` itself has."""
    parts = name.split(".")
    return parts[1] if parts[0] == "varla" and len(parts) > 1 and parts[1] in LEVEL else None


def upward(path, source):
    """What the module at `path` (relative to the package) imports against the order."""
    own = path.parts[0].removesuffix(".py")
    package = ".".join(("varla", *path.parts[:-1]))
    for name in imports(source, package):
        room = room_of(name)
        if name.split(".")[0] in BESIDE or (room not in (None, own) and LEVEL[room] >= LEVEL[own]):
            yield f"{path} imports {name}"


def test_nothing_imports_upwards():
    modules = sorted(PACKAGE.rglob("*.py"))
    assert len(modules) > 50
    found = [each for path in modules for each in upward(path.relative_to(PACKAGE), path.read_text(encoding="utf-8"))]
    assert not found, "\n".join(found)


def test_every_room_is_in_the_table():
    found = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert found == set(LEVEL)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("ops/vla.py", "from varla.layers import Layer"),
        ("ops/chunk/op.py", "def f():\n    import varla.layers.base"),
        ("ops/chunk/op.py", "from ... import layers"),
        ("layers/base.py", "from varla import training"),
        ("backbone/model.py", "from ..models.modeling import VarlaModel"),
        ("training/loop.py", "if TYPE_CHECKING:\n    from varla.lm.text import Text"),
        ("cli/main.py", "from benchmarks import cpu"),
        ("cli/main.py", "import reproduction.items"),
        ("report/demo.py", "from tests.cli import cases"),
    ],
)
def test_an_import_upwards_is_found(path, source):
    assert list(upward(Path(path), source))


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("cli/main.py", "from varla import __version__\nfrom varla.ops import vla"),
        ("ops/chunk/op.py", "from . import plan\nfrom ..state import State"),
        ("training/loop.py", "import torch\nfrom varla.tasks import make\nfrom varla.runs.outcomes import FINISHED"),
        ("__init__.py", "from varla.session import Session"),
    ],
)
def test_an_import_downwards_is_allowed(path, source):
    assert not list(upward(Path(path), source))


def test_kernels_import_nothing_from_the_chunk_form():
    """Each form of an operator stands on the reference's definitions, not on another form."""
    for path in (PACKAGE / "ops").rglob("triton/*.py"):
        package = ".".join(("varla", *path.relative_to(PACKAGE).parts[:-1]))
        taken = [name for name in imports(path.read_text(encoding="utf-8"), package) if "chunk" in name.split(".")[:-1]]
        assert not taken, (path, taken)


def test_the_two_operators_do_not_know_what_is_made_of_them():
    """`directions` and `memory` do not import each other, nor the mechanisms; only the fusions import both."""
    for own, other in (("directions", "memory"), ("memory", "directions")):
        for path in (PACKAGE / "ops" / own).rglob("*.py"):
            package = ".".join(("varla", *path.relative_to(PACKAGE).parts[:-1]))
            taken = set(imports(path.read_text(encoding="utf-8"), package))
            above = (other, "fused", "vla", "delta_rule", "linear_attention", "decayed_delta_rule")
            assert not [name for name in taken if name.split(".")[2:3] and name.split(".")[2] in above], path
