"""VarlaConfig: JSON and back, what may be set, and a clear error for what may not."""

import copy
import json

import pytest
from transformers import AutoConfig, PreTrainedConfig

from tests.models.cases import HYBRID, config
from varla.layers import MECHANISMS
from varla.layers.options import LONG_NAMES
from varla.models import VarlaConfig, configuration, preset


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"mechanisms": HYBRID, "mechanism_options": {"vla": {"update_penalty": False, "lambda0": 0.3}}},
        {"short_conv": None, "output_norm": "none", "output_gate": True, "head_dim": 10, "rope_theta": None},
        {"eos_token_id": [3, 4], "bos_token_id": 1, "pad_token_id": 0, "tie_word_embeddings": False},
        {"output_norm_eps": 1e-9, "rms_norm_eps": 1e-5, "initializer_range": 0.1, "use_cache": False},
    ],
)
def test_to_json_and_back_is_exact(changes, tmp_path):
    made = config(**changes)
    made.save_pretrained(tmp_path)
    for found in (VarlaConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(found) is VarlaConfig
        for name in VarlaConfig.__annotations__:
            assert getattr(found, name) == getattr(made, name), name
        assert found.to_json_string() == made.to_json_string()
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "varla"
    for name in VarlaConfig.__annotations__:  # a default that changes later must not change an old model
        assert name in json.loads((tmp_path / "config.json").read_text())


def test_one_name_is_for_all_layers():
    assert config(mechanisms="deltanet").layer_mechanisms == ["deltanet"] * 3
    assert config(mechanisms=HYBRID).layer_mechanisms == HYBRID
    assert config(mechanisms=tuple(HYBRID)).mechanisms == HYBRID
    assert config().head_dim == 8
    assert config().mechanism_options == {}


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_can_be_named(name):
    assert config(mechanisms=name, mechanism_options={name: {"conv": 2}}).layer_options(name)["conv"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mechanisms": "vlaa"}, "unknown mechanism 'vlaa'; did you mean 'vla'"),
        ({"mechanisms": ["vla", "vla", "Mamba"]}, "unknown mechanism 'Mamba'"),
        ({"mechanisms": ["vla", "softmax"]}, "one for each of num_hidden_layers = 3 layers, got 2"),
        ({"mechanism_options": {"vlaa": {}}}, "unknown mechanism 'vlaa' in mechanism_options"),
        (
            {"mechanism_options": {"vla": {"lambda": 1}}},
            "unknown option of 'vla' 'lambda' in mechanism_options; did you",
        ),
        ({"mechanism_options": {"linear": {"gate": "scalar"}}}, "unknown option of 'linear' 'gate'"),
        ({"mechanism_options": {"vla": {"gain": "best"}}}, "gain must be one of"),
        ({"mechanism_options": {"vla": {"lambda0": -1.0}}}, "lambda0 must be"),
        (
            {"num_attention_heads": 5},
            "num_attention_heads must divide hidden_size = 24 unless head_dim is given, got 5",
        ),
        ({"output_norm": "batch"}, "output_norm must be one of 'none', 'layer', 'rms'"),
        ({"short_conv": 0}, "short_conv must be at least 1"),
        ({"vocab_size": 0}, "vocab_size must be at least 1"),
        ({"rms_norm_eps": 0.0}, "rms_norm_eps must be greater than 0"),
        ({"rope_theta": -1.0}, "rope_theta must be greater than 0"),
        ({"initializer_range": 0}, "initializer_range must be greater than 0"),
        ({"mechanisms": "softmax", "head_dim": 7}, "head_dim must be even, got 7"),
        ({"eos_token_id": 50}, "eos_token_id must be below vocab_size = 50, got 50"),
        ({"pad_token_id": -1}, "pad_token_id must be at least 0"),
        ({"mechanism": "vla"}, "unknown setting 'mechanism'; did you mean 'mechanisms'"),
        ({"num_layers": 2}, "unknown setting 'num_layers': it is num_hidden_layers"),
        ({"rope_parameters": {"rope_theta": 5e5}}, "unknown setting 'rope_parameters': give rope_theta"),
        ({"num_key_value_heads": 1}, "every head has its own keys and values"),
        ({"attention_dropout": 0.1}, "there is no dropout"),
        ({"hiden_size": 2}, "did you mean 'hidden_size'"),
        ({"dtype": "floaty"}, "dtype must be a type of PyTorch's, as 'float32' or 'bfloat16', got 'floaty'"),
        ({"dtype": "nn"}, "dtype must be a type of PyTorch's"),
        ({"dtype": 5}, "dtype must be a type of PyTorch's"),
        ({"torch_dtype": "floaty"}, "dtype must be a type of PyTorch's"),
    ],
)
def test_wrong_values_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mechanisms": 3}, "mechanisms must be a name or a list of names"),
        ({"mechanisms": ["vla", None, "vla"]}, "mechanism must be a string"),
        ({"mechanism_options": {"vla": 3}}, "mechanism_options must be options by mechanism"),
        ({"hidden_size": "24"}, "hidden_size must be an integer"),
        ({"output_gate": 1}, "output_gate must be True or False"),
        ({"initializer_range": None}, "initializer_range must be a number"),
    ],
)
def test_wrong_types_are_refused(changes, message):
    with pytest.raises(TypeError, match=message):
        config(**changes)


def test_what_transformers_keeps_is_kept():
    made = config(architectures=["X"], quantization_config=None, sep_token_id=3, dtype="float32", note="mine")
    assert made.note == "mine"
    assert made.architectures == ["X"]


SLIPS = {"layer_norm_eps": 1e-5, "sliding_window": 128, "hiden_size": 2}


def test_slips_are_kept_with_one_warning_where_nobody_typed_them(tmp_path, caplog):
    """Tools add their own keys to a file; a model trained with one must load."""
    configuration._warn_once.cache_clear()
    made = config()
    for name, value in SLIPS.items():
        setattr(made, name, value)
    made.save_pretrained(tmp_path)
    loaded = [VarlaConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path), copy.deepcopy(made)]
    loaded += [VarlaConfig(**made.to_dict()), VarlaConfig.from_dict({"layer_norm_eps": 1e-5} | SLIPS)]
    for found in loaded:
        assert {name: getattr(found, name) for name in SLIPS} == SLIPS
    texts = [record.getMessage() for record in caplog.records]
    assert sorted(texts) == [
        "VarlaConfig keeps an unknown setting 'hiden_size'; did you mean 'hidden_size'?",
        "VarlaConfig keeps an unknown setting 'layer_norm_eps'; did you mean 'rms_norm_eps'?",
        "VarlaConfig keeps an unknown setting 'sliding_window': softmax layers look at everything",
    ]
    with pytest.raises(ValueError, match="hidden_size must be at least 1"):
        VarlaConfig(**{**made.to_dict(), "hidden_size": 0})


def test_what_transformers_knows_is_no_slip(caplog):
    caplog.set_level("WARNING", "transformers")
    general = {name: value for name, value in PreTrainedConfig().to_dict().items() if name != "model_type"}
    more = {"output_attentions": True, "output_scores": True, "attn_implementation": "eager", "name_or_path": "x"}
    made = config(**general | more)
    assert made.output_attentions
    made.output_hidden_states, made.hidden_size, made.anything = True, 48, 1
    assert not caplog.records


def test_the_file_says_what_to_import(tmp_path):
    config().save_pretrained(tmp_path)
    assert "import varla.models" in json.loads((tmp_path / "config.json").read_text())["needs"]
    assert not hasattr(VarlaConfig.from_pretrained(tmp_path), "needs")


def test_settings_may_have_the_short_names_of_the_lab(tmp_path):
    sizes = {"d_model": 32, "n_layers": 2, "n_heads": 4, "ffn": 48, "max_len": 100}
    options = {"conv": None, "norm_eps": 1e-9, "rotary": 100.0}
    made = VarlaConfig(**sizes, **options)
    long = {LONG_NAMES[name]: value for name, value in {**sizes, **options}.items()}
    assert made.to_dict() == VarlaConfig(**long).to_dict()
    assert {name: getattr(made, name) for name in sizes} == sizes
    assert preset("5m", d_model=64).hidden_size == 64
    made.save_pretrained(tmp_path)
    assert not set(sizes) & set(json.loads((tmp_path / "config.json").read_text()))
    with pytest.raises(ValueError, match="hidden_size must be at least 1"):
        VarlaConfig(d_model=0)
    for both in (lambda: VarlaConfig(hidden_size=32, d_model=64), lambda: preset("5m", hidden_size=32, d_model=64)):
        with pytest.raises(ValueError, match="d_model and hidden_size are the same setting: give one of them"):
            both()
