"""The tutorials run as they stand, one block after the other, and show what they say."""

import pytest
import torch

from tests.docs.pages import DOCS, run_page
from varla.layers import MECHANISMS


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a page in an empty folder; returns its names, and what its commands printed."""
    monkeypatch.chdir(tmp_path)

    def run(page):
        names: dict = {"__name__": "tutorial"}
        return names, run_page(page, names)

    return run


def test_the_home_page(run):
    names, _ = run("index.md")
    assert names["o"].shape == (2, 100, 4, 32)


def test_getting_started(run, tmp_path):
    _, (task, trained, compared, boxed, model, text) = run("getting-started.md")
    assert "SEP" in task
    assert float(trained.split("accuracy")[1].split()[0]) > 0.5
    assert "vla" in compared
    assert len(boxed) > 100
    assert "bits per byte" in model
    assert "Tuesday" in text
    assert (tmp_path / "runs/first/record.json").is_file()


def test_first_layer(run):
    names, _ = run("tutorials/first-layer.md")
    assert names["state"].memory.t.tolist() == [5, 9, 6]


def test_recall(run):
    names, (compared,) = run("tutorials/recall.md")
    assert names["record"]["final"]["eval"] > 3 * names["record"]["chance"]
    assert {"linear", "vla"} <= set(compared.replace("│", " ").split())
    assert set(names["readings"]) == {"|S|", "|A|", "k.a"}


def test_language_model(run):
    names, _ = run("tutorials/language-model.md")
    written = names["tokenizer"].decode(names["out"][0])
    assert written.startswith("After Monday comes Tuesday.\nAfter ")


def test_streaming(run):
    names, _ = run("tutorials/streaming.md")
    assert names["session"].position == names["other"].position
    assert names["size"] < 1_000_000


def test_own_mechanism(run):
    try:
        names, _ = run("tutorials/mechanism.md")
        assert names["layer"].mixture.grad.abs().min() > 0
        assert torch.isfinite(names["y"]).all()
    finally:
        MECHANISMS.pop("mixed", None)


def test_every_tutorial_is_run_here():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    pages = {page.stem for page in (DOCS / "tutorials").glob("*.md")} - {"index"}
    own = {"mechanism": "own_mechanism"}
    assert {own.get(page, page.replace("-", "_")) for page in pages} <= tested
