"""Checkpoints of models over ranks, by torch.distributed.checkpoint: saved on four ranks, loaded on two and on one."""

import pytest
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh

from tests.parallel.test_apply import batches, make_model
from tests.ranks import on_ranks
from varla.models import VarlaForCausalLM
from varla.parallel import apply_parallelism


def parallel(shape):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("shard", "context"))
    return apply_parallelism(make_model(), mesh)


def loss_of(model):
    return model(**batches(1)["rows"][0]).loss.item()


def save(folder):
    """Save weights that are not the initial ones, and return the loss."""
    model = parallel((2, 2))
    for parameter in model.parameters():
        parameter.data.mul_(1.5)
    checkpoint.save(get_model_state_dict(model), checkpoint_id=folder)
    return loss_of(model)


def save_pretrained(folder):
    """Save a folder for one process, and return the loss."""
    model = parallel((1, 2))
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        model.save_pretrained(folder, state_dict=whole)
    return loss_of(model)


def load(folder):
    model = parallel((1, dist.get_world_size()))
    before = loss_of(model)
    weights = get_model_state_dict(model)
    checkpoint.load(weights, checkpoint_id=folder)
    set_model_state_dict(model, weights)
    return before, loss_of(model)


def test_four_ranks_save_and_two_and_one_load(tmp_path):
    first, *others = on_ranks(4, save, str(tmp_path))
    assert others == [first] * 3
    for ranks in (2, 1):
        for before, after in on_ranks(ranks, load, str(tmp_path)):
            assert after == pytest.approx(first, abs=2e-6)
            assert abs(before - first) > 1e-3


def test_a_folder_that_rank_0_saves_is_loaded_by_one_process(tmp_path):
    losses = on_ranks(2, save_pretrained, str(tmp_path))
    one = VarlaForCausalLM.from_pretrained(tmp_path)
    assert losses == pytest.approx([loss_of(one)] * 2, abs=2e-6)
