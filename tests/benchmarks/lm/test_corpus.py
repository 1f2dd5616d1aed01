"""The corpus, from packages made here: nothing is fetched."""

import gzip
import json
import tarfile

import pytest

from benchmarks.lm import corpus
from benchmarks.lm.extract import Document
from varla.lm.text import documents


def text(seed, size):
    words = (f"word{seed}x{i}" for i in range(size))
    return " ".join(words)[:size].replace(" ", "_")


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder with one archive of text files."""
    folder = tmp_path / "speech-1.2"
    (folder / "data").mkdir(parents=True)
    for i in range(12):
        (folder / "data" / f"{i}.txt").write_text(text(i, 3000 if i < 8 else 40_000))
    (folder / "data" / "13_copy.txt").write_text(text(0, 3000))
    (folder / "data" / "old_f.txt").write_text(text(77, 3000))
    (folder / "data" / "packed.txt.gz").write_bytes(gzip.compress(text(78, 3000).encode()))
    (folder / "data" / "no.txt").write_bytes(b"\0" * 3000)
    (tmp_path / "packages").mkdir()
    with tarfile.open(tmp_path / "packages" / "speech-1.2.tar.gz", "w:gz") as tar:
        tar.add(folder, "speech-1.2")
    source = corpus.Source("speech", "1.2", False, ("data/*.txt", "data/*.txt.gz"), "plain", ("_f.txt",))
    monkeypatch.setattr(corpus, "TEXTS", {"all": corpus.Texts((source,), 2_000_000)})
    monkeypatch.setattr(corpus.subprocess, "run", lambda *_, **__: pytest.fail("it was there"))
    return tmp_path / "packages"


def test_it_is_made_of_packages_and_always_the_same(packages, tmp_path, capsys):
    for name in ("one", "two"):
        corpus.main([str(tmp_path / name), "--packages", str(packages)])
    assert "speech 1.2: train" in capsys.readouterr().out
    for file in ("train.jsonl.xz", "validation.jsonl.xz", "sources.json"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    train, validation = (
        list(documents(str(tmp_path / "one" / f"{part}.jsonl.xz"))) for part in ("train", "validation")
    )
    wanted = {text(i, 3000 if i < 8 else 40_000) for i in (*range(12),)} | {text(78, 3000)}
    assert {each.strip() for each in (*train, *validation)} == wanted
    assert len(train) + len(validation) == len(wanted)
    assert {len(each) > corpus.LONG for each in validation} == {True, False}
    described = json.loads((tmp_path / "one" / "sources.json").read_text())
    assert described["train"]["documents"] == len(train)
    assert described["validation"]["bytes"] == sum(len(each.encode()) for each in validation)
    assert described["sources"]["speech"]["version"] == "1.2"


def test_every_source_is_in_both_parts_and_first_ones_are_of_many():
    found = [
        Document(source, str(i), text(f"{source}{i}", 1000 * (1 + 40 * (i % 2)))) for source in "abc" for i in range(60)
    ]
    train, validation = corpus.split(found, 300_000)
    assert len(train) + len(validation) == len(found)
    assert {each.source for each in train} == {each.source for each in validation[:6]} == set("abc")
    assert 150_000 < sum(each.size for each in validation) <= 300_000
    assert corpus.split(found[::-1], 300_000) == (train, validation)


@pytest.mark.parametrize(
    ("debian", "name"), [(False, "x-y-1:2-3.tar.gz"), (True, "x-y_1%3a2-3_all.deb")], ids=["pypi", "debian"]
)
def test_only_the_fixed_version_will_do(debian, name, tmp_path, monkeypatch):
    """Another version is not taken, and where the index has the fixed one no longer, that is said."""
    asked = []
    failed = corpus.subprocess.CompletedProcess([], 1)
    monkeypatch.setattr(corpus.subprocess, "run", lambda command, **_: asked.append(command) or failed)
    source = corpus.Source("x-y", "1:2-3", debian, (), "plain")
    (tmp_path / name.replace("2-3", "2-4")).touch()
    with pytest.raises(SystemExit, match=r"x-y 1:2-3 could not be downloaded.*name its folder with --packages"):
        corpus.fetch(source, tmp_path)
    assert asked[0][-1] in ("x-y==1:2-3", "x-y=1:2-3")
    (tmp_path / name).touch()
    assert corpus.fetch(source, tmp_path) == tmp_path / name
    assert len(asked) == 1
