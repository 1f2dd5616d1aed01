import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
from filelock import FileLock

from tests.docs.pages import ROOT

NEEDED = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers.python")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The site, built strictly, once for all processes of a test run."""
    missing = [name for name in NEEDED if find_spec(name.partition(".")[0]) is None]
    if missing:
        pytest.skip(f'{", ".join(missing)} not installed: pip install -c constraints.txt -e ".[docs]"')
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    folder, log = shared / "site", shared / "site.log"
    with FileLock(shared / "site.lock"):
        if not log.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            log.write_text(f"{done.returncode}\n{done.stderr}")
    code, _, said = log.read_text().partition("\n")
    assert code == "0", said
    return folder
