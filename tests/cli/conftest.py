import pytest

from tests.cli.cases import TINY, varla, write
from tests.session.cases import save
from tests.session.cases import tiny as tiny_lm


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Settings of a run that takes a moment, as a file."""
    return write(tmp_path_factory.mktemp("settings") / "tiny.yaml", TINY)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, tiny):
    """A finished run. Read only."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    assert varla("train", tiny, "--out", folder, "--device", "cpu", "--quiet").exit_code == 0
    return folder


@pytest.fixture(scope="session")
def diverged(tmp_path_factory, tiny):
    """A run that diverged at its second step, and what was printed. Read only."""
    folder = tmp_path_factory.mktemp("runs") / "second"
    return folder, varla("train", tiny, "--out", folder, "--device", "cpu", "--quiet", "--set", "train.lr=1e30")


@pytest.fixture(scope="session")
def lm(tmp_path_factory):
    """The folder of a small language model of bytes, with its tokenizer. Read only."""
    return save(tmp_path_factory.mktemp("models") / "lm", tiny_lm())
