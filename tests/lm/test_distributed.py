"""Two processes over gloo train to the numbers of one: copies of the model (DDP), and shards of it (FSDP2)."""

import json
import os
import subprocess

import pytest
import yaml
from transformers import AutoModelForCausalLM

from tests.lm.cases import settings, write_text
from tests.warm import python
from varla.lm.settings import from_dict
from varla.lm.training import train

# accelerate shards on GPUs alone, though PyTorch does it over gloo as well: let it.
SHARDING = """
import sys
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType

make = AcceleratorState.__init__

def shard(self, *args, fsdp_plugin=None, **options):
    make(self, *args, fsdp_plugin=fsdp_plugin, **options)
    plugin = fsdp_plugin or self.__dict__.get("fsdp_plugin")
    if plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, plugin

AcceleratorState.__init__ = shard
from varla.cli import app
app()
"""
MECHANISMS = "model.mechanisms=[vla, gated-vla]"
FSDP = ["train.fsdp=true", "train.fsdp_config={version: 2, transformer_layer_cls_to_wrap: [VarlaBlock]}"]


def losses(folder):
    state = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())
    return [entry[name] for entry in state["log_history"] if "loss" in entry for name in ("loss", "grad_norm")]


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    text = write_text(folder / "text")
    return text, folder / "run", train(settings(text, MECHANISMS), folder / "run")


def in_processes(program, chosen, folder, count=2):
    """The command in that many processes, into folder/two."""
    (folder / "config.yaml").write_text(yaml.safe_dump(chosen.to_dict()))
    command = [python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *program]
    command += ["train-lm", str(folder / "config.yaml"), "--out", str(folder / "two")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHON_EXEC": python()}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("changes", [[], FSDP], ids=["ddp", "fsdp2"])
def test_two_processes_give_the_numbers_of_one(one, changes, tmp_path):
    """DDP as the documentation starts it: nothing says that there is no GPU."""
    text, folder, record = one
    (tmp_path / "script.py").write_text(SHARDING)
    chosen = settings(text, MECHANISMS, "train.per_device_train_batch_size=2", *changes).to_dict()
    if not changes:
        del chosen["train"]["use_cpu"]
    done = in_processes([str(tmp_path / "script.py")] if changes else ["-m", "varla"], from_dict(chosen), tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("bits per byte") == 1  # one of them speaks
    assert losses(tmp_path / "two") == pytest.approx(losses(folder), rel=1e-5)
    found = json.loads((tmp_path / "two" / "record.json").read_text())
    assert found["parameters"] == record["parameters"]
    assert found["scores"]["32"]["bits per byte"] == pytest.approx(record["scores"]["32"]["bits per byte"], rel=1e-6)
    a, b = (AutoModelForCausalLM.from_pretrained(each / "model").state_dict() for each in (folder, tmp_path / "two"))
    assert a.keys() == b.keys()
    for name in a:
        assert b[name].shape == a[name].shape
        assert float((b[name] - a[name]).abs().max()) < 1e-6, name


def test_sharding_that_would_not_happen_is_refused(one, tmp_path):
    done = in_processes(["-m", "varla"], settings(one[0], *FSDP), tmp_path, count=1)
    assert done.returncode != 0
    assert "error: train.fsdp needs GPUs: nothing would be sharded here" in done.stderr
