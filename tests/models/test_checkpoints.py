"""Saving and loading: bit for bit through every class, and an error that says what is wrong with a folder."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_MAPPING_NAMES,
)

from tests.models.cases import KINDS, VOCABULARY, model, tokens
from varla.models import VarlaConfig, VarlaForCausalLM, VarlaModel


def same(got, wanted):
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert got[name].dtype == tensor.dtype
        assert torch.equal(got[name], tensor), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_round_trip_is_exact(kind, tied, dtype, tmp_path):
    net, ids = model(kind, dtype, tie_word_embeddings=tied, output_gate=True), tokens(2, 9)
    net.save_pretrained(tmp_path)
    assert ("lm_head.weight" in load_file(tmp_path / "model.safetensors")) != tied
    for cls in (VarlaForCausalLM, AutoModelForCausalLM):
        found = cls.from_pretrained(tmp_path)
        assert type(found) is VarlaForCausalLM
        assert not found.training
        same(found.state_dict(), net.state_dict())
        assert (found.lm_head.weight is found.model.embed_tokens.weight) == tied
        assert torch.equal(found(ids).logits, net(ids).logits)
    for cls in (VarlaModel, AutoModel):
        found = cls.from_pretrained(tmp_path)
        assert type(found) is VarlaModel
        same(found.state_dict(), net.model.state_dict())


def test_in_another_type_and_in_shards(tmp_path):
    net = model("hybrid")
    net.save_pretrained(tmp_path, max_shard_size="10KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    same(VarlaForCausalLM.from_pretrained(tmp_path).state_dict(), net.state_dict())
    same(
        VarlaForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).state_dict(),
        {name: tensor.bfloat16() for name, tensor in net.state_dict().items()},
    )


def test_loading_information_is_there_for_who_asks(tmp_path):
    """It says what is missing: no error then."""
    net = model(tie_word_embeddings=False)
    net.save_pretrained(tmp_path)
    found, info = VarlaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert isinstance(found, VarlaForCausalLM)
    assert not info["missing_keys"]
    net.model.save_pretrained(tmp_path)
    found, info = VarlaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert set(info["missing_keys"]) == {"lm_head.weight"}
    same(found.model.state_dict(), net.model.state_dict())


@pytest.mark.parametrize("kept", ["model.embed_tokens.weight", "lm_head.weight"])
def test_one_of_the_tied_weights_in_the_file_is_enough(kept, tmp_path):
    net = model("hybrid")
    net.save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    tensors[kept] = tensors.pop("model.embed_tokens.weight")
    save_file(tensors, path, {"format": "pt"})
    found = VarlaForCausalLM.from_pretrained(tmp_path)
    same(found.state_dict(), net.state_dict())
    assert found.lm_head.weight is found.model.embed_tokens.weight


@pytest.mark.parametrize("tied", [True, False])
def test_with_more_tokens_and_from_the_base_model(tied, tmp_path):
    net, ids = model("hybrid", tie_word_embeddings=tied), tokens(2, 9)
    net.resize_token_embeddings(VOCABULARY + 6)
    net.save_pretrained(tmp_path / "whole")
    found = VarlaForCausalLM.from_pretrained(tmp_path / "whole")
    assert torch.equal(found(ids + 6).logits, net(ids + 6).logits)
    assert (found.lm_head.weight is found.model.embed_tokens.weight) == tied
    net.model.save_pretrained(tmp_path / "base")  # without the head, which a tied one does not need
    if tied:
        same(VarlaForCausalLM.from_pretrained(tmp_path / "base").state_dict(), net.state_dict())
    else:
        with pytest.raises(ValueError, match=r"1 are missing, 'lm_head\.weight' among them"):
            VarlaForCausalLM.from_pretrained(tmp_path / "base")


def test_a_folder_says_what_to_import(tmp_path):
    net = model()
    net.save_pretrained(tmp_path)
    readme = tmp_path / "README.md"
    assert "import varla.models" in readme.read_text()
    assert 'in a clone of varla: pip install -e ".[hf]"' in readme.read_text(), "varla is not on a package index"
    assert readme.read_text().startswith("---\nlibrary_name: varla\n")
    readme.write_text("mine")
    net.save_pretrained(tmp_path)
    assert readme.read_text() == "mine"


def test_generic_code_finds_the_classes_by_name():
    assert MODEL_MAPPING_NAMES["varla"] == "VarlaModel"
    assert MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["varla"] == "VarlaForCausalLM"
    assert MODEL_FOR_CAUSAL_LM_MAPPING[VarlaConfig] is VarlaForCausalLM
    assert "varla" not in CONFIG_MAPPING_NAMES  # else transformers would look for the module in its own package


@pytest.fixture
def folder(tmp_path):
    model("hybrid").save_pretrained(tmp_path)
    return tmp_path


def change(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def assert_refused(folder, message, error=ValueError):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(error, match=message):
        AutoModelForCausalLM.from_pretrained(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("kept", [0, 4, 200, -1])
def test_a_truncated_file(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert_refused(folder, f"{folder}: its weights cannot be read \\(damaged, or cut short\\)")


def test_a_file_of_something_else(folder):
    (folder / "model.safetensors").write_bytes(b"not safetensors at all" * 100)
    assert_refused(folder, "its weights cannot be read")


def test_no_weights_and_no_configuration(folder):
    (folder / "model.safetensors").unlink()
    assert_refused(folder, "no file named model.safetensors", OSError)  # transformers' own words, from here on
    (folder / "config.json").write_text('{"model_type": "var')
    assert_refused(folder, "not a valid JSON file", OSError)


def test_a_vocabulary_that_does_not_fit(folder):
    change(folder, vocab_size=60)
    assert_refused(
        folder, r"model.embed_tokens.weight has shape \[50, 24\] in the checkpoint and \[60, 24\] by config.json"
    )


def test_shapes_may_be_ignored_by_who_says_so(folder):
    change(folder, vocab_size=60)
    assert VarlaForCausalLM.from_pretrained(folder, ignore_mismatched_sizes=True).lm_head.out_features == 60


def test_settings_that_do_not_fit(folder):
    change(folder, num_hidden_layers=4, mechanisms="vla")
    assert_refused(
        folder, "does not hold all weights of this VarlaForCausalLM: .* 'model.layers.1.mixer.u.weight' among them"
    )
    change(folder, mechanisms="vlaa")
    assert_refused(folder, "unknown mechanism 'vlaa'; did you mean 'vla'")


def test_missing_weights(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path, {"format": "pt"})
    assert_refused(folder, "1 are missing, 'model.norm.weight' among them")


@pytest.mark.parametrize(
    "changes", [{"num_hidden_layers": 2, "mechanisms": ["vla", "softmax"]}, {"mechanisms": "softmax"}]
)
def test_weights_that_the_settings_have_no_place_for(folder, changes):
    change(folder, **changes)
    assert_refused(folder, "does not fit its configuration: it holds .* weights that this VarlaForCausalLM has not")
    with pytest.raises(ValueError, match="weights that this VarlaModel has not"):
        AutoModel.from_pretrained(folder)


def test_another_family(folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(
        LlamaConfig(vocab_size=50, hidden_size=24, num_hidden_layers=3, num_attention_heads=3, intermediate_size=32)
    ).save_pretrained(other)
    with pytest.raises(ValueError, match="configuration of a 'llama' model, not of a 'varla' one"):
        VarlaForCausalLM.from_pretrained(other)
    shutil.copy(other / "model.safetensors", folder)
    assert_refused(folder, "Is it a checkpoint of another model")
