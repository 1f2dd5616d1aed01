"""varla score: the numbers of varla.lm.scoring, for files of any length, and what is refused."""

import re
import shutil

import numpy as np
import pytest

from tests.cli.cases import refused, varla
from tests.cli.damage import DAMAGES
from varla.lm.folder import load_folder
from varla.lm.scoring import score

TEXT = "Alle Wege führen nach Rom. ∑\n" * 60


def run(*arguments):
    return varla("score", *arguments, "--device", "cpu")


def rows(result):
    assert result.exit_code == 0, result.output
    return {cells[0]: cells[1:] for cells in re.findall(r"│\s+(\S+) │\s+(\S+) │\s+(\S+) │\s+(\S+) │", result.stdout)}


@pytest.fixture
def file(tmp_path):
    (tmp_path / "text.txt").write_bytes(TEXT.encode())
    return tmp_path / "text.txt"


def test_gives_the_scores_of_the_tokens(lm, file):
    model, tokenizer = load_folder(lm)
    tokens = np.array(tokenizer(TEXT, add_special_tokens=False)["input_ids"])
    found = rows(run(lm, file, "--context", 100, "--context", "all"))
    assert list(found) == ["100", "all"]
    for name, context in (("100", 100), ("all", len(tokens))):
        wanted = score(model, tokens, context, 1.0)
        assert float(found[name][0]) == pytest.approx(wanted.bits_per_byte, abs=2e-4)
        assert float(found[name][1]) == pytest.approx(wanted.perplexity, rel=1e-3)
        assert int(found[name][2]) == wanted.tokens


def test_default_contexts_and_the_files_size(lm, file):
    result = run(lm, file)
    assert list(rows(result)) == ["512", "all"]
    assert "no context of 2048: the text is shorter" in result.stdout
    assert f"text.txt: {len(TEXT.encode()):,} bytes" in result.stdout


@pytest.mark.parametrize(
    ("context", "words"),
    [("1", ["--context must be at least 2"]), ("many", ["number of tokens or 'all'", "'many'"]), ("2.5", ["'2.5'"])],
)
def test_contexts_that_are_none(lm, file, context, words):
    assert refused(run(lm, file, "--context", context), *words)


def test_files_that_cannot_be_scored(lm, tmp_path):
    assert refused(run(lm, tmp_path / "none"), "none", "No such file")
    assert refused(run(lm, tmp_path), "is a folder")
    (tmp_path / "short").write_text("a")
    assert refused(run(lm, tmp_path / "short"), "at least 2 tokens", "got 1")
    (tmp_path / "empty").write_text("")
    assert refused(run(lm, tmp_path / "empty"), "at least 2 tokens", "got 0")
    (tmp_path / "latin").write_bytes("führen".encode("latin-1"))
    assert refused(run(lm, tmp_path / "latin"), "not UTF-8", "byte 1 is 0xfc")


@pytest.mark.parametrize("name", DAMAGES)
def test_folders_that_hold_no_usable_model(lm, file, tmp_path, name):
    damage, words = DAMAGES[name]
    folder = shutil.copytree(lm, tmp_path / "lm")
    damage(folder)
    assert refused(run(folder, file), "lm", *words)
