import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest
from filelock import FileLock

from tests.docs.pages import ROOT

NEEDED = ("mkdocs", "material", "mkdocstrings")


def build(*more, cwd=ROOT):
    """Run MkDocs as `make docs` does."""
    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        pytest.skip(f'{", ".join(missing)} not installed: pip install -c constraints.txt -e ".[docs]"')
    (arguments,) = re.findall(r"\$\(BIN\)/mkdocs (build.*)$", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    command = [sys.executable, "-m", "mkdocs", *arguments.split(), *map(str, more)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built once for all processes of a test run."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, log = shared / "site", shared / "site.log"
    with FileLock(shared / "site.lock"):
        if not log.exists():
            done = build("--site-dir", folder)
            log.write_text(f"{done.returncode}\n{done.stderr}")
    code, _, said = log.read_text().partition("\n")
    assert code == "0", said
    return folder
