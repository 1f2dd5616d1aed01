"""The model in the box: every command and function has it by its name, offline, and its card says what it is."""

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from benchmarks.lm.card import card
from benchmarks.lm.tiny import RECIPE
from tests.cli.cases import refused, varla
from varla import Session
from varla.box import MODELS, model_folder
from varla.lm.folder import FolderError, load_folder, load_model
from varla.lm.training import build_model
from varla.models import VarlaForCausalLM
from varla.runs.settings import load

TINY = model_folder("tiny")
RECORD = json.loads((TINY / "record.json").read_text())
CARD = (TINY / "README.md").read_text()
PROMPT = "Fellow-citizens of the Senate and of the House of "
ENGLISH = "The people of this country have always been ready to do their duty, and the Government must do its own.\n"


@pytest.fixture(autouse=True)
def offline_and_elsewhere(tmp_path, monkeypatch):
    """An empty working directory, and no network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("it asked the network"))


@pytest.fixture(scope="module")
def model():
    return load_folder("tiny")


def test_it_is_small_and_holds_what_a_folder_needs():
    sizes = {file.name: file.stat().st_size for file in TINY.iterdir()}
    assert sizes.keys() == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "record.json", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    assert sum(sizes.values()) <= 4_000_000


def test_it_is_stored_in_bfloat16_and_computed_in_float32(model):
    stored = load_file(TINY / "model.safetensors")
    assert {weight.dtype for weight in stored.values()} == {torch.bfloat16}
    own = model[0].state_dict()
    for name, weight in stored.items():
        assert torch.equal(own[name], weight.float())


def test_the_card_is_drawn_from_the_record():
    assert card(RECORD) == CARD
    for context, found in RECORD["scores"].items():
        assert f"| {context} | {found['bits per byte']:.3f} |" in CARD


def test_the_record_is_of_the_recipe_and_of_these_weights(model):
    recipe = load(RECIPE)
    assert RECORD["status"] == "finished"
    for group in ("model", "train"):
        assert RECORD["settings"][group] == recipe[group]
    assert RECORD["settings"]["data"]["context"] == recipe["data"]["context"]
    assert RECORD["steps"] == recipe["train"]["max_steps"]
    assert RECORD["parameters"] == sum(p.numel() for p in model[0].parameters())
    assert set(model[0].config.layer_mechanisms) == {"gated-vla"}


def test_the_card_names_licences_sources_and_limits():
    words = " ".join(CARD.split())
    assert CARD.startswith("---\nlicense: mit\n")
    for each in ("public domain (17 U.S.C. 105)", "CC BY 2.5", "MIT", "text-shaped noise", "for nothing else"):
        assert each in words
    for name, source in RECORD["text"]["sources"].items():
        assert f"{name} {source['version']}" in words


def test_rounding_changed_its_scores_little():
    for context, found in RECORD["scores"].items():
        before = RECORD["scores before rounding"][context]["bits per byte"]
        assert found["bits per byte"] == pytest.approx(before, abs=0.001)


def test_it_has_learned_english(tmp_path):
    """Text that it has not seen takes far less than a byte's 8 bits, and less than the same letters shuffled."""
    bits = {}
    letters = torch.randperm(len(ENGLISH), generator=torch.Generator().manual_seed(0)).tolist()
    for name, text in {"english": ENGLISH, "letters": "".join(ENGLISH[i] for i in letters)}.items():
        (tmp_path / name).write_text(text)
        result = varla("score", "tiny", name, "--context", "all", "--device", "cpu")
        assert result.exit_code == 0, result.output
        bits[name] = float(result.stdout.split("all")[1].split()[1])
    assert bits["english"] < 2.5
    assert bits["letters"] > bits["english"] + 1


def test_generate_and_a_session_write_the_same(model):
    options = ["--prompt", PROMPT, "--tokens", "40", "--device", "cpu"]
    for choices, same in ((["--temperature", "0"], {"temperature": 0}), (["--seed", "3"], {"seed": 3})):
        printed = varla("generate", "tiny", *options, *choices)
        assert (printed.exit_code, printed.stderr) == (0, "")
        assert printed.stdout == "".join(Session(*model).feed(PROMPT).generate_text(40, **same))


def test_its_likeliest_text_is_the_same_everywhere(model):
    """The closest choice is between logits 0.05 apart: rounding on another machine is far smaller."""
    text = "".join(Session(*model).feed("The people of the United States").generate_text(60, temperature=0))
    assert text == " and the people of the United States are not all the people "


def test_it_goes_on_from_a_saved_state(tmp_path):
    options = ["--tokens", "20", "--temperature", "0", "--device", "cpu"]
    read = varla("generate", "tiny", "--prompt", PROMPT, "--tokens", "0", "--save-state", tmp_path / "state")
    assert read.exit_code == 0, read.output
    whole = varla("generate", "tiny", "--prompt", PROMPT, *options)
    then = varla("generate", "tiny", "--state", tmp_path / "state", *options)
    assert then.stdout == whole.stdout


def test_watch_has_its_name(tmp_path):
    result = varla("watch", "tiny", "--text", "To be, or not to be")
    assert result.exit_code == 0, result.output
    assert "tiny: layers 0, 1, 2, 3, 4" in result.stdout
    assert (tmp_path / "watch.html").stat().st_size > 100_000


def test_transformers_loads_its_folder():
    assert VarlaForCausalLM.from_pretrained(model_folder("tiny")).config.eos_token_id == 256
    assert load_model("tiny").config.max_position_embeddings == RECORD["settings"]["data"]["context"]


def test_it_can_be_trained_further(model):
    further = build_model({"folder": "tiny"}, 257, model[1], 2048)
    assert {p.dtype for p in further.parameters()} == {torch.float32}
    assert further.config.max_position_embeddings == 2048


def test_a_path_stays_a_path_and_comes_first(tmp_path):
    assert MODELS == ("tiny",)
    for path in ("runs/tiny", "/tiny", "Tiny", ""):
        assert model_folder(path) == Path(path)
    (tmp_path / "tiny").mkdir()
    assert model_folder("tiny").resolve() == tmp_path / "tiny"
    with pytest.raises(FolderError, match=r"^tiny holds no model"):
        load_folder("tiny")
    shutil.copytree(TINY, tmp_path / "tiny", dirs_exist_ok=True)
    assert load_folder("tiny")


@pytest.mark.parametrize("command", ["generate", "score", "watch", "harness"])
def test_an_unknown_name_lists_those_there_are(command, tmp_path):
    (tmp_path / "file").write_text("text")
    more = {"generate": ["--prompt", "x"], "score": ["file"], "watch": ["--text", "x"], "harness": ["--task", "t"]}
    assert refused(varla(command, "huge", *more[command]), "huge is not a folder", "(by name there is: tiny)")


def test_a_missing_folder_that_is_no_name_lists_nothing():
    with pytest.raises(FolderError, match=r"^runs/none is not a folder with a model$"):
        load_model("runs/none")
