"""Build the package from the tracked files, and install it where neither the repository nor a missing extra can help.

An installation is a virtual environment that holds varla alone. Its dependencies are links to those of the tests' own
environment, chosen by the wheel's metadata: what an extra does not ask for cannot be imported.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from importlib.metadata import Distribution, PackageNotFoundError, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
BUILD = "import sys; from setuptools import build_meta; print(getattr(build_meta, sys.argv[1])(sys.argv[2]))"


def tracked() -> list[str]:
    """The paths of all tracked files that are there."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no clone: which files are tracked is unknown")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listed.split("\0") if (ROOT / name).is_file()]


def copy(folder: Path) -> Path:
    """A copy of the tracked files."""
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    return folder


def build(kind: str, source: Path, out: Path) -> Path:
    """Build a "wheel" or an "sdist" with the installed setuptools, as `python -m build --no-isolation` does."""
    out.mkdir(exist_ok=True)
    result = run([sys.executable, "-c", BUILD, f"build_{kind}", str(out)], source)
    assert result.returncode == 0, result.stderr
    return out / result.stdout.split()[-1]


def unpack(sdist: Path, out: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(out, filter="data")
    return out / sdist.name.removesuffix(".tar.gz")


def run(command: list[str], folder: Path, *path: Path) -> subprocess.CompletedProcess:
    """The result of a process in a folder that sees the modules in `path`, and not those of the test process."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


class Installation:
    """The wheel in a virtual environment of its own, under `folder`."""

    def __init__(self, wheel: Path, folder: Path) -> None:
        self.folder = folder
        venv.create(folder / "environment", with_pip=False)
        self.bin = folder / "environment" / "bin"
        install = ["install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--disable-pip-version-check"]
        result = run([sys.executable, "-m", "pip", "--python", str(self.bin / "python"), *install, str(wheel)], folder)
        assert result.returncode == 0, result.stderr
        (self.packages,) = (folder / "environment" / "lib").glob("python*/site-packages")
        (information,) = self.packages.glob("varla-*.dist-info")
        self.distribution = PathDistribution(information)

    def varla(self, *arguments: str | Path, extras: str) -> subprocess.CompletedProcess:
        """The result of `varla ARGUMENTS` with these extras ("hf,lab") and no other packages."""
        return self._run([self.bin / "varla", *arguments], extras)

    def python(self, *arguments: str | Path, extras: str) -> subprocess.CompletedProcess:
        """The result of `python ARGUMENTS`, alike."""
        return self._run([self.bin / "python", *arguments], extras)

    def _run(self, command: list[str | Path], extras: str) -> subprocess.CompletedProcess:
        return run([str(each) for each in command], self.folder, self._links(extras))

    def _links(self, extras: str) -> Path:
        """A folder with links to all that varla with these extras asks for, and what that asks for."""
        links = self.folder / f"packages[{extras}]"
        if not links.exists():
            links.mkdir()
            needed = closure(self.distribution, set(extras.split(",")), {}).values()
            tops = {file.parts[0]: each for each in needed for file in each.files or ()}  # several may share a folder
            for top in tops.keys() - {"..", "__pycache__"}:
                (links / top).symlink_to(tops[top].locate_file(top))
        return links


def closure(asking: Distribution, extras: set[str], found: dict[str, Distribution]) -> dict[str, Distribution]:
    """Add the distributions that `asking` needs, with its extras, to those found; in turn, what they need."""
    for line in asking.requires or ():
        needed = Requirement(line)
        key = f"{canonicalize_name(needed.name)}{sorted(needed.extras)}"
        wanted = not needed.marker or any(needed.marker.evaluate({"extra": extra}) for extra in {*extras, ""})
        if not wanted or key in found:
            continue
        if needed.name == asking.name:  # varla[lm] asks for varla[hf,lab]
            closure(asking, needed.extras, found)
            continue
        try:
            found[key] = distribution(needed.name)
        except PackageNotFoundError:
            pytest.skip(f"{needed.name} is not installed, which {asking.name} needs")
        closure(found[key], needed.extras, found)
    return found
