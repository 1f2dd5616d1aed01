"""No command runs code from a folder with a model, a tokenizer, a dataset or tasks, whatever standard input says."""

import builtins
import sys

import pytest
from typer.testing import CliRunner

from tests.lm.cases import write_text
from tests.security import hostile
from tests.session.cases import save, tiny
from varla.cli.main import app
from varla.lm.folder import FolderError, load_folder, load_model
from varla.lm.text import TextError, documents, load_tokenizer


@pytest.fixture(autouse=True)
def nobody_asks(monkeypatch):
    """A question is a failure, even if the answer would be no."""

    def asked(prompt=""):
        pytest.fail(f"a question was asked: {prompt}")

    monkeypatch.setattr(builtins, "input", asked)


def invoke(*command):
    return CliRunner().invoke(app, [str(each) for each in command], input="y\nhello\n")


@pytest.mark.parametrize("kind", hostile.NAMES)
def test_a_folder_with_code_is_refused_before_anything_is_loaded(kind, tmp_path):
    folder, mark = hostile.folder(tmp_path / "model", kind)
    (tmp_path / "text").write_text("hello")
    for command in (["generate", folder, "-"], ["score", folder, tmp_path / "text"]):
        done = invoke(*command)
        assert done.exit_code == 2, done.output
        assert done.stdout == ""
        for words in (str(folder), hostile.NAMES[kind][0], "theirs.Theirs", "theirs.py", "never run"):
            assert words in done.stderr
    with pytest.raises(FolderError, match="never run"):
        load_folder(folder)
    assert not mark.exists()


@pytest.mark.parametrize("kind", ["model", "configuration"])
def test_a_model_alone(kind, tmp_path):
    folder, mark = hostile.folder(tmp_path / "model", kind)
    with pytest.raises(FolderError, match="theirs"):
        load_model(folder)
    assert not mark.exists()


def test_a_function_that_would_replace_generate(tmp_path):
    folder = save(tmp_path / "model", tiny())
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text("raise SystemExit")
    with pytest.raises(FolderError, match=r"never run: custom_generate/generate\.py"):
        load_model(folder)


def test_a_kernel_from_the_hub(tmp_path):
    folder = save(tmp_path / "model", tiny())
    hostile.change(folder / "config.json", attn_implementation="who/what")
    with pytest.raises(FolderError, match=r"never run: config\.json names 'who/what'"):
        load_model(folder)


def test_weights_that_are_pickled(tmp_path):
    folder = save(tmp_path / "model", tiny())
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(FolderError, match=r"pytorch_model\.bin.*safetensors"):
        load_model(folder)


def test_python_that_nothing_names_is_no_reason(tmp_path):
    folder = save(tmp_path / "model", tiny())
    (folder / "convert.py").write_text("raise SystemExit")
    assert load_folder(folder)


@pytest.mark.parametrize("kind", [name for name in hostile.NAMES if "tokenizer" in name])
def test_a_tokenizer_for_training(kind, tmp_path):
    folder, mark = hostile.folder(tmp_path / "model", kind)
    with pytest.raises(TextError, match="never run"):
        load_tokenizer(str(folder))
    out = tmp_path / "run"
    settings = [f"tokenizer={folder}", f"data.train={write_text(tmp_path / 'text')}", "model.preset=5m"]
    done = invoke("train-lm", "--out", out, *(part for each in settings for part in ("--set", each)))
    assert done.exit_code == 2, done.output
    assert "never run" in done.stderr
    assert not mark.exists()


def test_a_tokenizer_on_the_hub(tmp_path, monkeypatch):
    """By name there is no folder to look into: transformers refuses, and is not asked to ask."""
    from transformers import AutoTokenizer

    def refuse(name, **options):
        assert options["trust_remote_code"] is False
        raise ValueError(
            f"The repository {name} contains custom code which must be executed to correctly load the model. You can "
            "inspect ...\nPlease pass the argument `trust_remote_code=True` to allow custom code to be run."
        )

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(TextError, match="'who/what' brings its own Python code, which is never run"):
        load_tokenizer("who/what")


@pytest.mark.parametrize("name", ["script.py", "folder"])
def test_a_dataset_with_a_script(name, tmp_path):
    mark = tmp_path / "mark"
    (tmp_path / "folder").mkdir()
    for file in (tmp_path / "script.py", tmp_path / "folder" / "folder.py"):
        file.write_text(f"from pathlib import Path\nPath({str(mark)!r}).write_text('ran')\n")
    with pytest.raises(TextError, match=r"never run: .*(script|folder)\.py"):
        list(documents({"dataset": str(tmp_path / name)}))
    assert not mark.exists()


def test_only_the_text_goes_to_standard_output(tmp_path, monkeypatch):
    """Whatever a library prints while a model is loaded goes to standard error."""
    import varla.lm.folder as module

    folder = save(tmp_path / "model", tiny())
    wanted = invoke("generate", folder, "--prompt", "a", "--tokens", 5, "--seed", 1)
    assert wanted.exit_code == 0, wanted.output
    inner = module.load_folder

    def talking(*args):
        print("loading ...")
        sys.stdout.write("still loading ...\n")
        return inner(*args)

    monkeypatch.setattr(module, "load_folder", talking)
    found = invoke("generate", folder, "--prompt", "a", "--tokens", 5, "--seed", 1)
    assert found.stdout == wanted.stdout
    assert "still loading" in found.stderr
