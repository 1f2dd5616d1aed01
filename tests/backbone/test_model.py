"""The backbone: shapes, decode, packing, shared weights, presets."""

import math

import pytest
import torch
from torch import nn

from tests.ops.cases import error
from varla.backbone import Backbone, BackboneConfig, backbone_config
from varla.layers import MECHANISMS
from varla.layers.norm import RMSNorm
from varla.layers.options import LONG_NAMES
from varla.training import build_model, from_dict

NAMES = sorted(MECHANISMS)


def tokens(B, T, vocab=128, seed=1):
    return torch.randint(vocab, (B, T), generator=torch.Generator().manual_seed(seed))


def model(preset, name, **changes):
    return Backbone(backbone_config(preset, name, **changes), seed=3).double()


@pytest.mark.parametrize("preset", ["paper", "tuned"])
@pytest.mark.parametrize("name", NAMES)
def test_decode_and_packing_equal_the_full_forward(name, preset):
    net, x = model(preset, name), tokens(2, 40)
    wanted, final = net(x)
    assert wanted.shape == (2, 40, 128)
    first, state = net(x[:, :25])
    parts = [first]
    for t in range(25, 40):
        logits, state = net(x[:, t : t + 1], state)
        parts.append(logits)
    assert error(torch.cat(parts, 1), wanted) <= 1e-11
    assert torch.equal(state.t, final.t)
    packed, _ = net(x.reshape(1, 80), cu_seqlens=torch.tensor([0, 40, 80]))
    assert error(packed.view(2, 40, 128), wanted) <= 1e-11


@pytest.mark.parametrize("preset", ["paper", "tuned"])
def test_the_same_seed_gives_the_same_shared_weights(preset):
    models = {name: dict(model(preset, name).named_parameters()) for name in NAMES}
    for name in NAMES:
        for key, parameter in models[name].items():
            for other in NAMES:
                if key in models[other] and models[other][key].shape == parameter.shape and ".u." not in key:
                    assert torch.equal(models[other][key], parameter), (name, other, key)
    assert "blocks.0.mixer.q.weight" in models["vla"]
    another = Backbone(backbone_config(preset, "vla"), seed=4).double()
    assert not torch.equal(another.embedding.weight, models["vla"]["embedding.weight"])


def test_making_a_model_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    wanted = torch.randn(3)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    net = model("paper", "vla")
    torch.set_rng_state(state)
    assert torch.equal(torch.randn(3), wanted)
    assert net.norm.weight.eq(1).all()


def test_preset_paper_is_the_papers_table_and_what_it_leaves_out():
    net = model("paper", "vla")
    c = net.config
    assert (c.n_layers, c.d_model, c.n_heads, c.ffn, c.vocab_size) == (2, 128, 4, 256, 128)
    mixer = net.blocks[0].mixer
    assert mixer.head_dim == 32
    assert isinstance(mixer.norm, nn.LayerNorm)
    assert mixer.u.weight.shape == (128, 128)
    assert mixer.conv is None
    assert net.positions is not None
    assert abs(float(net.positions.weight.std()) - 0.02) < 2e-3
    assert abs(float(mixer.q.weight.std()) - 0.02) < 2e-3
    assert mixer.q.bias.eq(0).all()
    for name in set(NAMES) - {"vla"}:
        assert isinstance(model("paper", name).blocks[0].mixer.norm, nn.Identity)


def test_preset_tuned_treats_all_alike():
    for name in NAMES:
        net = model("tuned", name)
        mixer = net.blocks[0].mixer
        assert isinstance(mixer.norm, nn.LayerNorm)
        assert mixer.conv.width == 4
        assert net.positions is None


@pytest.mark.parametrize("preset", ["paper", "tuned"])
@pytest.mark.parametrize("name", NAMES)
def test_no_token_is_preferred_at_first(name, preset):
    """Else the head, which is tied to the embeddings, would have to be unlearnt: theirs are small."""
    with torch.no_grad():
        logits, _ = model(preset, name)(tokens(4, 20))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens(4, 20, seed=3).flatten())
    assert abs(float(loss) - math.log(128)) < 0.2


def test_options_of_the_layer_and_the_backbone_can_be_changed():
    net = model("paper", "vla", layer={"update_penalty": False, "output_norm": "none"}, n_layers=1, vocab_size=50)
    assert net.blocks[0].mixer.options["update_penalty"] is False
    assert isinstance(net.blocks[0].mixer.norm, nn.Identity)
    assert net(tokens(1, 5, vocab=50))[0].shape == (1, 5, 50)


def test_settings_may_have_the_names_that_transformers_has():
    sizes = {"d_model": 32, "n_layers": 1, "n_heads": 2, "ffn": 48, "max_len": 20}
    long = {LONG_NAMES[name]: value for name, value in sizes.items()}
    found = backbone_config("tuned", "softmax", layer={"short_conv": None, "rope_theta": 100.0}, **long)
    assert found == backbone_config("tuned", "softmax", layer={"conv": None, "rotary": 100.0}, **sizes)
    run = from_dict({"model": {"hidden_size": 16, "num_attention_heads": 2, "max_position_embeddings": 99}})
    made = build_model(run).config
    assert (made.d_model, made.n_heads, made.max_len) == (16, 2, 99)
    with pytest.raises(ValueError, match="d_model and hidden_size are the same setting: give one of them"):
        backbone_config("paper", "vla", d_model=32, hidden_size=32)
    with pytest.raises(ValueError, match="unknown model setting 'hiden_size'"):
        backbone_config("paper", "vla", hiden_size=32)


def test_an_rms_norm_over_the_merged_heads():
    net = model("paper", "vla", layer={"output_norm": "rms"})
    assert isinstance(net.blocks[0].mixer.norm, RMSNorm)
    assert net.blocks[0].mixer.norm.weight.eq(1).all()


def test_the_head_is_the_embedding():
    net = model("paper", "linear")
    assert not [name for name, _ in net.named_parameters() if "head" in name]
    net(tokens(1, 9))[0].sum().backward()
    assert net.embedding.weight.grad.abs().max() > 0


@pytest.mark.parametrize("name", NAMES)
def test_state_size(name):
    net = Backbone(backbone_config("tuned", name))
    _, state = net(tokens(1, 30))
    assert state.nbytes == net.state_size(30)


def tensors(state):
    for layer in state.layers:
        yield from ([] if layer.conv is None else [layer.conv])
        yield from layer.memory.tensors().values()
    yield state.t


@pytest.mark.parametrize("name", NAMES)
def test_a_state_has_names_for_all_its_tensors(name):
    _, state = model("tuned", name)(tokens(2, 9))
    found = state.tensors()
    assert [x.data_ptr() for x in found.values()] == [x.data_ptr() for x in tensors(state)]
    assert {"layers.0.conv", "layers.1.t", "t"} <= set(found)


def test_a_printed_state_shows_types_and_shapes_and_no_numbers():
    _, state = model("tuned", "vla")(tokens(2, 9))
    lines = str(state).splitlines()
    assert lines[0] == f"ModelState of {state.nbytes:,} bytes"
    assert lines[1:3] == ["  layers.0.conv: float64 [2, 3, 128]", "  layers.0.S: float64 [2, 4, 32, 32]"]
    assert lines[-1] == "  t: int64 [2]"
    assert len(lines) == 1 + len(state.tensors())
    assert str(state.layers[0]).splitlines()[-1] == "  t: int64 [2]"


@pytest.mark.parametrize("name", NAMES)
def test_a_state_can_be_copied_cut_loose_and_moved(name):
    net, x = model("tuned", name), tokens(2, 12)
    _, state = net(x[:, :9])
    before = list(tensors(state))
    assert any(tensor.requires_grad for tensor in before)

    copy, loose, moved = state.clone(), state.detach(), state.to("meta")
    for found in (copy, loose, moved):
        assert [each.shape for each in tensors(found)] == [each.shape for each in before]
        assert [each.dtype for each in tensors(found)] == [each.dtype for each in before]
    assert not {each.data_ptr() for each in tensors(copy)} & {each.data_ptr() for each in before}
    assert [each.data_ptr() for each in tensors(loose)] == [each.data_ptr() for each in before]
    assert not any(tensor.requires_grad for tensor in tensors(loose))
    assert all(tensor.is_meta for tensor in tensors(moved))

    wanted, _ = net(x[:, 9:], state)
    for tensor in tensors(loose):
        tensor.zero_()  # the original with it, and the copy not
    assert torch.equal(net(x[:, 9:], copy)[0], wanted)
    assert not torch.equal(net(x[:, 9:], loose)[0], wanted)


def test_watch_shows_every_layer():
    readings = model("paper", "vla").watch(tokens(2, 10))
    assert len(readings) == 2
    assert readings[1]["|A|"].shape == (2, 10, 4)


def test_errors():
    with pytest.raises(ValueError, match="unknown preset 'papr'; did you mean 'paper'"):
        backbone_config("papr", "vla")
    with pytest.raises(ValueError, match="positions must be one of"):
        BackboneConfig(positions="rotary")
    with pytest.raises(ValueError, match="n_layers must be at least 1"):
        BackboneConfig(n_layers=0)
    net = model("paper", "vla", max_len=8)
    assert net(tokens(1, 16), cu_seqlens=torch.tensor([0, 8, 16]))[0].shape == (1, 16, 128)
    with pytest.raises(ValueError, match="learned positions end at max_len = 8, got 9 tokens"):
        net(tokens(1, 9))
    _, state = net(tokens(1, 8))
    with pytest.raises(ValueError, match="got 9 tokens"):
        net(tokens(1, 1), state)
    with pytest.raises(ValueError, match="tokens must be integers of shape"):
        net(torch.zeros(1, 3))
