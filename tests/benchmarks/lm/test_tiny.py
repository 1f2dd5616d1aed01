"""The recipe of the model in the box, at a small size and on text made here."""

import json

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.lm import corpus, tiny
from benchmarks.lm.card import card
from benchmarks.lm.extract import Document
from varla.lm.folder import load_folder
from varla.lm.settings import check_train, from_dict
from varla.lm.training import build_model
from varla.runs.settings import load

SMALL = (
    "model.hidden_size=16", "model.num_hidden_layers=1", "model.num_attention_heads=1", "model.intermediate_size=16",
    "data.context=32", "train.per_device_train_batch_size=2", "train.max_steps=2", "train.save_steps=2",
    "train.bf16=false", "evaluate.contexts=[16, 32]",
)  # fmt: skip


@pytest.fixture
def text(tmp_path):
    """A folder as benchmarks.lm.corpus writes it."""
    folder = tmp_path / "text"
    folder.mkdir()
    parts, sizes = {}, {}
    for part in tiny.PARTS:
        found = [Document("sotu", str(i), f"{part} number {i} of a few texts. " * 8) for i in range(4)]
        digest = corpus.write(folder / f"{part}.jsonl.xz", found)
        sizes[part] = {"documents": 4, "bytes": sum(each.size for each in found)}
        parts[part] = {**sizes[part], "sha256": digest}
    described = {**parts, "sources": {"sotu": {"version": "0.1.2", **sizes}}}
    (folder / "sources.json").write_text(json.dumps(described))
    return folder


def make(tmp_path, text):
    changes = [part for change in SMALL for part in ("--set", change)]
    tiny.main([str(tmp_path / "model"), "--text", str(text), "--run", str(tmp_path / "run"), *changes])
    return tmp_path / "model"


def test_it_is_trained_rounded_scored_and_described(tmp_path, text, capsys):
    folder = make(tmp_path, text)
    printed = capsys.readouterr().out
    model, _ = load_folder(folder)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {weight.dtype for weight in load_file(folder / "model.safetensors").values()} == {torch.bfloat16}
    trained, _ = load_folder(tmp_path / "run" / "model")
    for name, weight in trained.named_parameters():
        assert torch.equal(weight.bfloat16().float(), model.get_parameter(name))
    record = json.loads((folder / "record.json").read_text())
    assert record["tokens seen"] == 2 * 2 * 32
    assert record["text"]["train"]["sha256"] in (text / "sources.json").read_text()
    assert record["scores"].keys() == record["scores before rounding"].keys() == {"16", "32"}
    for context, each in record["scores"].items():
        before = record["scores before rounding"][context]["bits per byte"]
        assert each["bits per byte"] == pytest.approx(before, rel=1e-3)
        assert f"context {context}: {each['bits per byte']:.4f} bits per byte" in printed
    assert (folder / "README.md").read_text() == card(record)


def test_a_finished_run_is_only_written_again(tmp_path, text, monkeypatch):
    folder = make(tmp_path, text)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    monkeypatch.setattr("varla.lm.training.SavingTrainer.train", lambda *_, **__: pytest.fail("trained again"))
    make(tmp_path, text)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_missing_text_is_made(tmp_path, monkeypatch):
    class Made(Exception):
        pass

    def made(folder, packages, texts):
        raise Made(folder, [source.package for source in texts.sources])

    monkeypatch.setattr(corpus, "make", made)
    with pytest.raises(Made) as caught:
        tiny.main([str(tmp_path / "model"), "--text", str(tmp_path / "text")])
    assert caught.value.args == (tmp_path / "text", ["sotu", "shakespeare"])


def test_the_recipe_fits_in_the_box():
    """Two bytes a parameter; 30 kB are left for the other files."""
    settings = from_dict(load(tiny.RECIPE))
    check_train(settings.train)
    tokenizer = type("Tokens", (), {"bos_token_id": None, "eos_token_id": 256, "pad_token_id": 256})
    with torch.device("meta"):
        model = build_model(settings.model, 257, tokenizer, settings.data.context)
    assert 1_800_000 < sum(p.numel() for p in model.parameters()) < (4_000_000 - 30_000) // 2
    assert set(model.config.layer_mechanisms) == {"gated-vla"}
