"""varla watch: a page of a run or of a language model, two side by side, and what is refused."""

import json
import re

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from tests.cli.cases import TINY, refused, varla, write
from tests.session.cases import save, tiny
from varla.cli.streams import visible
from varla.lm.folder import load_folder
from varla.lm.text import byte_tokenizer
from varla.training import Run, build_task
from varla.training import trained_model as load_run

TEXT = "Es war ∑\neinmal"  # 17 bytes


def watch(*arguments):
    return varla("watch", *arguments)


def made(result, path):
    """The data in the page that the command wrote."""
    assert result.exit_code == 0, result.output
    assert f"written  {path}" in result.stdout
    return json.loads(re.search(r'id="data">(.*?)</script>', path.read_text(encoding="utf-8"), re.DOTALL)[1])


@pytest.fixture(scope="module")
def other(tiny_run):
    """A run of another mechanism on the same task. Read only."""
    return tiny_run("mechanism=gated-deltanet")


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    """Makes a run of one step with changed settings."""

    def make(*changes):
        folder = tmp_path_factory.mktemp("runs") / "other"
        file = write(folder.parent / "tiny.yaml", TINY)
        options = [word for change in ("train.steps=1", *changes) for word in ("--set", change)]
        found = varla("train", file, "--out", folder, "--device", "cpu", "--quiet", *options)
        assert found.exit_code == 0, found.output
        return folder

    return make


def test_a_run_reads_a_sequence_of_its_task(trained, tmp_path):
    out = tmp_path / "new" / "page.html"
    found = made(watch(trained, "--seed", 5, "--out", out), out)
    task = build_task(Run(trained).config())
    inputs, labels = task.batch(1, torch.Generator().manual_seed(5))
    tokens, answers = task.words(inputs[0].tolist(), labels[0].tolist())
    assert [(token["text"], token["answer"]) for token in found["tokens"]] == list(zip(tokens, answers, strict=True))
    (model,) = found["models"]
    assert (model["name"], [layer["mechanism"] for layer in model["layers"]]) == ("first", ["vla"])
    with torch.no_grad():
        best = load_run(trained)[0](inputs)[0][0].argmax(-1)
    said = [None if answer is None else f"v{token}" for answer, token in zip(answers, best.tolist(), strict=True)]
    assert model["says"] == said


def test_the_task_is_the_default_and_the_seed_chooses(trained, tmp_path):
    pages = [
        made(watch(trained, *options, "--out", tmp_path / "page.html"), tmp_path / "page.html")
        for options in ([], ["--task"], ["--seed", 1])
    ]
    assert pages[0] == pages[1] != pages[2]


def test_the_page_is_watch_html_by_default(trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert watch(trained.resolve()).exit_code == 0
    assert (tmp_path / "watch.html").is_file()


def test_a_language_model_reads_a_text(lm, tmp_path):
    out = tmp_path / "page.html"
    found = made(watch(lm, "--text", TEXT, "--out", out), out)
    assert len(found["tokens"]) == len(TEXT.encode())
    assert "".join(token["text"] for token in found["tokens"][:7]) == "Es␣war␣"
    assert found["tokens"][10]["text"] == "⏎"
    assert all(token["text"] and token["answer"] is None for token in found["tokens"])
    model, tokenizer = load_folder(lm)
    ids = torch.tensor([tokenizer(TEXT, add_special_tokens=False)["input_ids"]])
    best = int(model(ids).logits[0, 1].argmax())
    (shown,) = found["models"]
    assert shown["says"][1] in (visible(tokenizer.decode([best])), tokenizer.convert_ids_to_tokens(best))
    assert [layer["index"] for layer in shown["layers"]] == [0, 1]
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    assert made(watch(lm, "--text-file", tmp_path / "text.txt", "--out", out), out) == found


def test_chosen_layers(lm, tmp_path):
    out = tmp_path / "page.html"
    found = made(watch(lm, "--text", "abc", "--layer", 1, "--out", out), out)
    assert [layer["index"] for layer in found["models"][0]["layers"]] == [1]
    assert refused(watch(lm, "--text", "abc", "--layer", 7, "--out", out), "--layer 7", "(allowed: 0, 1)")


def test_two_runs_side_by_side(trained, other, tmp_path):
    out = tmp_path / "page.html"
    found = made(watch(trained, other, "--out", out), out)
    assert [model["name"] for model in found["models"]] == ["first", "other"]
    assert [model["layers"][0]["mechanism"] for model in found["models"]] == ["vla", "gated-deltanet"]
    assert found["tokens"] == made(watch(trained, "--out", out), out)["tokens"]


def test_two_language_models_with_one_name(lm, tmp_path):
    second = save(tmp_path / "lm", tiny("gated-vla"))
    found = made(watch(lm, second, "--text", "abc", "--out", tmp_path / "page.html"), tmp_path / "page.html")
    assert [model["name"] for model in found["models"]] == [str(lm), str(second)]


def test_a_model_in_a_run_has_the_runs_name(tmp_path):
    folder = save(tmp_path / "book" / "model", tiny())
    found = made(watch(folder, "--text", "abc", "--out", tmp_path / "page.html"), tmp_path / "page.html")
    assert found["models"][0]["name"] == "book/model"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["lm is a language model", "--text or --text-file"]),
        (["--task"], ["has no task"]),
        (["--text", ""], ["the text is empty"]),
        (["--text", "a", "--task"], ["give one of --text, --text-file and --task"]),
        (["--text", "a" * 300], ["300 tokens", "shows 256", "up to 512"]),
        (["--text", "a" * 600, "--tokens", 512], ["600 tokens", "at most 512"]),
        (["--text", "a", "--tokens", 513], ["--tokens must be at most 512", "513"]),
        (["--text", "a", "--tokens", 0], ["--tokens must be at least 1"]),
        (["--text", "a", "--out", "page.pdf"], ["--out must end in .html", "page.pdf"]),
        (["--text-file", "nowhere.txt"], ["nowhere.txt cannot be read"]),
    ],
    ids=str,
)
def test_wrong_arguments_are_refused(lm, arguments, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(watch(lm, *arguments), *words)
    assert not list(tmp_path.iterdir())


def test_wrong_arguments_of_a_run_are_refused(trained, tmp_path):
    assert refused(watch(trained, "--text", "a"), "is a run of `varla train`", "use --task")
    assert refused(watch(trained, "--tokens", 5), "have 7 tokens", "shows 5", "up to 512")
    assert refused(watch(trained, "--out", tmp_path), "--out must end in .html")
    (tmp_path / "page.html").mkdir()
    assert refused(watch(trained, "--out", tmp_path / "page.html"), "is a folder")


def test_folders_that_hold_nothing_to_watch(lm, trained, diverged, tmp_path):
    assert refused(watch(tmp_path / "none"), "none is not a folder")
    assert refused(watch(tmp_path), "neither a run of `varla train` (config.yaml) nor a language model (config.json)")
    assert refused(watch(diverged[0]), "holds no checkpoint")
    assert refused(watch(trained, trained), "is given twice")
    for pair in ((trained, lm), (lm, trained)):
        assert refused(watch(*pair), f"{trained} is a run on a task, {lm} a language model")


def test_softmax_has_no_memory_to_watch(tiny_run, tmp_path):
    folder = save(tmp_path / "attention", tiny("softmax"))
    assert refused(watch(folder, "--text", "a"), "attention keeps no memory matrix", "softmax")
    assert refused(watch(tiny_run("mechanism=softmax")), "keeps no memory matrix", "softmax")


def test_models_that_cannot_read_the_same_tokens(trained, tiny_run, lm, tmp_path):
    assert refused(watch(trained, tiny_run("task.n=1")), "7 tokens", "learned positions for 4")
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"abc": 0, "?": 1}, unk_token="?")))
    found = watch(lm, save(tmp_path / "words", tiny(), words), "--text", "abc", "--out", tmp_path / "page.html")
    assert refused(found, "words cut the text into different tokens")


def test_other_names_for_the_same_tokens_are_no_difference(lm, tmp_path):
    second = save(tmp_path / "bytes", tiny(), byte_tokenizer())
    found = made(watch(lm, second, "--text", TEXT, "--out", tmp_path / "page.html"), tmp_path / "page.html")
    assert len(found["models"]) == 2
