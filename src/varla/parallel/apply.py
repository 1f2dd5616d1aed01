"""`apply_parallelism`: a model over a device mesh of data, shard and context ranks."""

import inspect
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from varla.models import VarlaForCausalLM
from varla.models.checks import IGNORED, TWICE, check_ids, check_vocabulary, check_wanted
from varla.models.layout import find_layout, shifted
from varla.ops.split import Split

DIMENSIONS = ("data", "shard", "context")


def apply_parallelism(model: VarlaForCausalLM, mesh: DeviceMesh, **fsdp: Any) -> VarlaForCausalLM:
    """Make a model train over the ranks of a mesh, and return it: call it as before, with whole rows.

        mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("shard", "context"))
        apply_parallelism(model, mesh)
        loss = model(input_ids=ids, labels=ids).loss  # ids [B, T], the same on the ranks of a context group
        loss.backward()

    Args:
        model: on the device, with the same weights on all ranks.
        mesh: its dimensions, in this order, all optional but at least one of the last two:
            "data": ranks that have all weights, and different rows;
            "shard": ranks that have a part of each weight (FSDP2), and different rows;
            "context": ranks that have a part of each weight, and of the tokens of every row. What they exchange in a
            recurrent layer does not depend on the length. Softmax layers split their heads over them instead.
        fsdp: options of `torch.distributed.fsdp.fully_shard`, such as `mp_policy`.

    With "context", a call returns the logits of this rank's tokens, and the loss of all of them: the same on all ranks
    of the group. Gradients are those of the mean of this loss over all ranks of the mesh, as FSDP2 computes them.
    """
    sizes = check_mesh(mesh)
    if not isinstance(model, VarlaForCausalLM):
        raise TypeError(f"model must be a VarlaForCausalLM, got {type(model).__name__}")
    if any(isinstance(module, FSDPModule) for module in model.modules()):
        raise ValueError("model is spread over a mesh already: give a model whose weights are whole on every rank")
    context = sizes.get("context", 1)
    for block in model.model.layers:
        block.mixer.check_ranks(context)  # type: ignore[union-attr, operator]
    over = _sharded(mesh, sizes)
    for block in model.model.layers:
        fully_shard(block, mesh=over, **fsdp)
    fully_shard(model, mesh=over, **fsdp)
    if context > 1:
        group = mesh["context"].get_group()
        model.register_forward_pre_hook(partial(_split_batch, group), with_kwargs=True)
        model.register_forward_hook(partial(_join_loss, group))
    return model


def check_mesh(mesh: DeviceMesh) -> dict[str, int]:
    """The sizes of a mesh's dimensions by name. Raises a ValueError for dimensions that are not known."""
    if not isinstance(mesh, DeviceMesh):
        raise TypeError(f"mesh must be a DeviceMesh, got {type(mesh).__name__}")
    names = mesh.mesh_dim_names
    if not names or [name for name in DIMENSIONS if name in names] != list(names):
        raise ValueError(f"mesh must have dimensions named {', '.join(DIMENSIONS)}, in this order, got {names}")
    if set(names) == {"data"}:
        raise ValueError(
            "mesh must have a dimension shard or context; for copies of a whole model alone use DistributedDataParallel"
        )
    return dict(zip(names, mesh.shape, strict=True))


def _sharded(mesh: DeviceMesh, sizes: dict[str, int]) -> DeviceMesh:
    """The mesh for FSDP2: weights are sharded over shard and context ranks together, and copied over data ranks."""
    shard = sizes.get("shard", 1) * sizes.get("context", 1)
    if "data" in sizes:
        return DeviceMesh(mesh.device_type, mesh.mesh.view(-1, shard), mesh_dim_names=("data", "shard"))
    return DeviceMesh(mesh.device_type, mesh.mesh.view(shard), mesh_dim_names=("shard",)) if len(sizes) > 1 else mesh


def _split_batch(
    group: dist.ProcessGroup, model: VarlaForCausalLM, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Replace whole rows by this rank's tokens of them, and labels by what these tokens predict."""
    given = inspect.signature(type(model).forward).bind(model, *args, **kwargs).arguments
    del given["self"]
    if isinstance(given.get("cu_seqlens"), Split):
        return (), given
    name = "input_ids" if given.get("input_ids") is not None else "inputs_embeds"
    x, labels = given.get(name), given.pop("labels", None)
    if not isinstance(x, Tensor) or x.dim() < 2:
        return (), given  # the model says what is wrong
    mask, positions, cu_seqlens = (given.pop(each, None) for each in ("attention_mask", "position_ids", "cu_seqlens"))
    layout = find_layout(x.shape[:2], x.device, mask, positions, cu_seqlens, past=0)
    wanted = given.get("targets")
    if labels is not None:
        if wanted is not None:
            raise ValueError(TWICE)
        wanted = shifted(labels, x.shape[:2], layout, given.get("num_items_in_batch"))
    # All ranks check all tokens: if one rank alone refused a batch, the others would wait for it.
    if name == "input_ids":
        check_ids(x)
        check_vocabulary(name, x, model.get_input_embeddings().num_embeddings)
    if wanted is not None:
        check_wanted(wanted, x.shape[0], x.shape[1], model.lm_head.out_features)
    if layout is None:
        split = Split.even(group, x.shape[1])
    else:
        x, wanted = layout.pack(x), None if wanted is None else layout.pack(wanted)
        split = Split.even(group, x.shape[1], layout.cu_seqlens)
    given |= {name: split.own(x), "cu_seqlens": split, "use_cache": False}
    if wanted is not None:
        count = given.get("num_items_in_batch")
        count = (wanted != IGNORED).sum() if count is None else count
        # FSDP2 takes the mean over ranks: each rank's part of the mean counts as often as there are ranks.
        given |= {"targets": split.own(wanted), "num_items_in_batch": count / split.ranks}
    return (), given


def _join_loss(group: dist.ProcessGroup, model: VarlaForCausalLM, args: tuple[Any, ...], output: Any) -> Any:
    """Give the loss the value that it has over all ranks' tokens. Its gradient is that of this rank's part."""
    as_tuple = isinstance(output, tuple)
    loss = output[0] if as_tuple else output.loss
    if loss is None or loss.dim() > 0:  # a tuple without a loss begins with logits
        return output
    whole = loss.detach().clone()
    dist.all_reduce(whole, group=group)
    loss = loss + (whole / dist.get_world_size(group) - loss).detach()
    if as_tuple:
        return (loss, *output[1:])
    output.loss = loss
    return output
