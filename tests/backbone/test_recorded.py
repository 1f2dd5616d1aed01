"""Numbers that must not move: fresh weights by seed, bit for bit, and losses of recorded runs."""

import hashlib

import pytest
import torch

from varla.backbone import Backbone, backbone_config
from varla.models import VarlaForCausalLM, preset
from varla.training import Run, build_model, from_dict, train
from varla.training.progress import Progress


def digest(net):
    """Of names, shapes and numbers; the same on every machine, because PyTorch's CPU generator is."""
    found = hashlib.blake2b(digest_size=16)
    for name, x in net.state_dict().items():
        found.update(f"{name} {x.dtype} {list(x.shape)} ".encode())
        found.update(x.contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


@pytest.mark.parametrize(
    ("preset", "mechanism", "wanted"),
    [
        ("paper", "vla", "ca6a062cc16178372b19185ef8c74228"),
        ("paper", "softmax", "88a5b819dfc8b0c4901201634305265b"),
        ("tuned", "deltanet", "a334d5a720c8a3510e7aa07b1b881ab2"),
    ],
)
def test_a_seed_gives_the_weights_that_it_gave_before(preset, mechanism, wanted):
    assert digest(Backbone(backbone_config(preset, mechanism), seed=42)) == wanted


@pytest.mark.parametrize(
    ("mechanisms", "wanted"),
    [("vla", "88215f1c198438fa6a007599a4c957ce"), ("deltanet", "f8ce9bcdb1a82d19fbeff57e98b908f2")],
)
def test_so_does_a_seed_for_the_models_of_transformers(mechanisms, wanted):
    torch.manual_seed(0)
    assert digest(VarlaForCausalLM(preset("5m", num_hidden_layers=2, mechanisms=mechanisms))) == wanted


class Enough(Exception):
    pass


class StopAt(Progress):
    def __init__(self, last):
        self.last = last

    def step(self, step, entry):
        if step == self.last:
            raise Enough


# The records have 1024 bytes of state less for linear and vla: z was float32 then.
@pytest.mark.parametrize(
    ("mechanism", "losses", "parameters", "state_bytes"),
    [
        ("softmax", {1: 4.08014}, 289664, 130056),
        ("linear", {1: 4.0798}, 289664, 34840),
        ("vla", {1: 4.31099, 25: 3.95836}, 323200, 67608),
    ],
)
def test_a_recorded_run_gives_the_same_losses_again(mechanism, losses, parameters, state_bytes, tmp_path):
    """The first steps of runs that reports/quick/copy.json records, with six digits."""
    settings = {
        "mechanism": mechanism,
        "task": {"name": "copy-identity", "seq_len": 63},
        "train": {"steps": 300, "batch_size": 32, "warmup": 0.5, "eval_every": 50, "checkpoint_every": 1000},
    }
    net = build_model(from_dict(settings))
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert net.state_size(63) == state_bytes
    with pytest.raises(Enough):
        train(from_dict(settings), tmp_path / "run", progress=StopAt(max(losses)), device="cpu")
    found = {entry["step"]: entry["loss"] for entry in Run(tmp_path / "run").metrics()}
    assert found == pytest.approx(losses, abs=1e-5)
