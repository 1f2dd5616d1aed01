"""Models over context and shard ranks: losses, gradients and training are those of one process."""

import os
from functools import cache

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from tests.docs.pages import DOCS, blocks
from tests.ranks import on_ranks
from varla.layers import build
from varla.models import VarlaConfig, VarlaForCausalLM
from varla.parallel import Split, apply_parallelism

MECHANISMS = ["vla", "gated-vla", "softmax", "deltanet", "gated-deltanet", "mesa", "linear", "deltanet-paper"]
OPTIONS = {"gated-vla": {"beat": 4}}
MESHES = {
    "two context ranks": {"context": 2},
    "four context ranks": {"context": 4},
    "shard and context": {"shard": 2, "context": 2},
    "data, shard and context": {"data": 2, "shard": 1, "context": 2},
}
TRAINED = "shard and context"  # one of them also trains
STEPS = 5


def make_model(**changes):
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24}
    torch.manual_seed(0)
    config = VarlaConfig(
        **sizes, num_hidden_layers=len(MECHANISMS), mechanisms=MECHANISMS, mechanism_options=OPTIONS, **changes
    )
    return VarlaForCausalLM(config).double()


@cache
def batches(count):
    """Batches of `count` groups of ranks, by name. Rows are as long that some rank has fewer tokens than others."""
    found = {name: [] for name in ("rows", "short", "padded", "packed", "positions")}
    for i in range(count):
        numbers = torch.Generator().manual_seed(i)
        ids = torch.randint(32, (2, 23), generator=numbers)
        mask = torch.ones_like(ids)
        mask[0, :3], mask[1, -6:] = 0, 0
        row = ids.view(1, -1)
        starts = torch.cat((torch.arange(5), torch.arange(30), torch.arange(11)))[None]
        found["rows"].append({"input_ids": ids, "labels": ids})
        found["short"].append({"input_ids": ids[:, :6], "labels": ids[:, :6]})  # pieces shorter than the convolution
        found["padded"].append({"input_ids": ids, "labels": ids, "attention_mask": mask})
        found["packed"].append({"input_ids": row, "labels": row, "cu_seqlens": torch.tensor([0, 5, 35, 46])})
        found["positions"].append({"input_ids": row, "labels": row, "position_ids": starts})
    return found


def gradients(model):
    return {name: (p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad).clone()
            for name, p in model.named_parameters()}  # fmt: skip


def trained(model, given):
    """Losses of a few steps on batches that alternate."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = sum(model(**batch).loss / len(given[step % len(given)]) for batch in given[step % len(given)])
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def on_this_rank(sizes, trains):
    """(loss, logits, gradients) of every kind of batch; then the losses of training, without and with checkpointing."""
    mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    context = sizes.get("context", 1)
    mine = dist.get_rank() // context
    found, model = {}, apply_parallelism(make_model(), mesh)
    for name, given in batches(dist.get_world_size() // context).items():
        model.zero_grad()
        output = model(**given[mine])
        output.loss.backward()
        found[name] = output.loss.item(), output.logits.detach(), gradients(model)
    if not trains:
        return found
    rows = [given[mine : mine + 1] for given in batches(dist.get_world_size() // context).values()]
    for name in ("training", "checkpointing"):
        model = make_model().train()
        if name == "checkpointing":
            model.gradient_checkpointing_enable({"use_reentrant": False})
        found[name] = trained(apply_parallelism(model, mesh), rows)
    return found


@pytest.fixture(scope="module", params=MESHES)
def over_ranks(request):
    sizes = MESHES[request.param]
    count = 1
    for size in sizes.values():
        count *= size
    return sizes, on_ranks(count, on_this_rank, sizes, request.param == TRAINED)


def test_losses_logits_and_gradients_are_those_of_one_process(over_ranks):
    sizes, ranks = over_ranks
    context, groups = sizes.get("context", 1), len(ranks) // sizes.get("context", 1)
    for name, given in batches(groups).items():
        model, losses = make_model(), []
        for group, batch in enumerate(given):
            output = model(**batch)
            (output.loss / groups).backward()
            losses.append(output.loss.item())
            parts = [rank[name][1] for rank in ranks[group * context : (group + 1) * context]]
            if "attention_mask" not in batch:  # padded rows are packed
                assert (torch.cat(parts, 1) - output.logits).abs().max() < 1e-10, name
        wanted = gradients(model)
        for rank, found in enumerate(ranks):
            loss, _, grads = found[name]
            assert loss == pytest.approx(losses[rank // context], abs=2e-6)  # transformers' loss is float32
            for key, x in wanted.items():
                assert (grads[key] - x).abs().max() < 1e-8, (name, key)


@pytest.mark.parametrize("over_ranks", [TRAINED], indirect=True)
def test_training_has_the_losses_of_one_process(over_ranks):
    sizes, ranks = over_ranks
    groups = len(ranks) // sizes.get("context", 1)
    alone = trained(make_model().train(), list(batches(groups).values()))
    for name in ("training", "checkpointing"):
        by_group = [rank[name] for rank in ranks[:: sizes.get("context", 1)]]
        means = [sum(losses) / groups for losses in zip(*by_group, strict=True)]
        assert means == pytest.approx(alone, abs=1e-5)
    assert ranks[0]["training"] == pytest.approx(ranks[0]["checkpointing"], abs=1e-6)


def wrong_batches(model, said):
    """What a model over context ranks refuses, by name. Wrong tokens are those of the last rank."""
    ids = torch.arange(8)[None]
    wrong = ids.masked_fill(ids == 7, 32)
    packed = {"cu_seqlens": torch.tensor([0, 3, 8]), "num_items_in_batch": 7}
    return {
        "wrong ids": said(lambda: model(wrong)),
        "wrong labels": said(lambda: model(ids, labels=wrong)),
        "wrong targets": said(lambda: model(ids, targets=wrong)),
        "labels and targets": said(lambda: model(ids, labels=ids, targets=ids)),
        "targets, shape": said(lambda: model(ids, targets=ids[:, :4])),
        "counted": said(lambda: model(ids, labels=ids, **packed)),
        "saved": said(lambda: model.save_pretrained("nowhere")),
    }


def wrong_calls():
    """What is refused, by name: with two ranks."""
    group = dist.group.WORLD

    def said(call):
        try:
            call()
        except (TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    def mesh(*names, shape=None):
        return init_device_mesh("cpu", shape or (2,), mesh_dim_names=names or None)

    model, x = make_model(), torch.randn(1, 4, 16)
    three = VarlaConfig(vocab_size=8, hidden_size=12, num_attention_heads=3, num_hidden_layers=1, mechanisms="softmax")
    channels = VarlaConfig(
        vocab_size=8, hidden_size=8, num_attention_heads=2, num_hidden_layers=1, mechanisms="deltanet-paper",
        mechanism_options={"deltanet-paper": {"gate": "channel"}},
    )  # fmt: skip
    split = Split.even(group, 8)
    other = [dist.new_group([rank]) for rank in (1, 0)][dist.get_rank()]  # of the other rank alone
    twice = apply_parallelism(make_model(), mesh("shard"))
    layer = build("gated-vla", d_model=16, n_heads=2)
    ids = torch.zeros(1, 4, dtype=torch.int64)
    return {
        "heads": said(lambda: apply_parallelism(VarlaForCausalLM(three), mesh("context"))),
        "channels": said(lambda: apply_parallelism(VarlaForCausalLM(channels), mesh("context"))),
        "names": said(lambda: apply_parallelism(model, mesh("tensor"))),
        "no names": said(lambda: apply_parallelism(model, mesh())),
        "order": said(lambda: apply_parallelism(model, mesh("context", "shard", shape=(2, 1)))),
        "data": said(lambda: apply_parallelism(model, mesh("data"))),
        "model": said(lambda: apply_parallelism(layer, mesh("context"))),
        "no mesh": said(lambda: apply_parallelism(model, group)),
        "twice": said(lambda: apply_parallelism(twice, mesh("shard"))),
        "few tokens": said(lambda: Split.even(group, 1)),
        "no group": said(lambda: Split.even("gloo", 8)),
        "none": said(lambda: Split.even(None, 8)),
        "other group": said(lambda: Split.even(other, 8)),
        "other group, bounds": said(lambda: Split(other, (0, 4, 8))),
        "list": said(lambda: Split.even(group, 8, [0, 8])),
        "tokens": said(lambda: layer(x[:, :3], cu_seqlens=split)),
        "bounds": said(lambda: Split(group, (0, 4, 4, 8))),
        "bounds, type": said(lambda: Split(group, (0, 4.0, 8))),
        "bounds, none": said(lambda: Split(group, None)),
        "empty": said(lambda: Split(group, (0, 0, 8))),
        "offsets, type": said(lambda: Split(group, (0, 4, 8), (0, 3.5, 8))),
        "offsets, none": said(lambda: Split(group, (0, 4, 8), ())),
        "offsets": said(lambda: Split(group, (0, 4, 8), (0, 3, 7))),
        "rows": said(lambda: layer(x.expand(2, -1, -1), cu_seqlens=Split(group, (0, 4, 8), (0, 8)))),
        "own": said(lambda: split.own(x)),
        "own, dimension": said(lambda: split.own(x, 3)),
        "own, type": said(lambda: split.own([0] * 8)),
        "mask": said(lambda: model(ids, attention_mask=ids + 1, cu_seqlens=split)),
        "cache": said(lambda: model(ids, use_cache=True, cu_seqlens=split)),
        "labels": said(lambda: model(ids, labels=ids, cu_seqlens=split)),
        **wrong_batches(apply_parallelism(make_model(), mesh("context")), said),
        "state": said(lambda: build("softmax", d_model=16, n_heads=2)(x, layer(x)[1], cu_seqlens=split)),
    }


def test_what_cannot_be_is_refused_before_anything_is_exchanged():
    for found in on_ranks(2, wrong_calls):
        expected = {
            "heads": "ValueError: softmax attention splits heads over ranks: 2 must divide 3 heads",
            "channels": "ValueError: a decay for every value channel cannot be split over ranks",
            "names": "ValueError: mesh must have dimensions named data, shard, context, in this order, got ('tensor',)",
            "no names": "ValueError: mesh must have dimensions named data, shard, context, in this order, got None",
            "order": "ValueError: mesh must have dimensions named data, shard, context, in this order, got ('context'",
            "data": "ValueError: mesh must have a dimension shard or context",
            "model": "TypeError: model must be a VarlaForCausalLM, got GatedVLA",
            "no mesh": "TypeError: mesh must be a DeviceMesh, got ProcessGroup",
            "twice": "ValueError: model is spread over a mesh already",
            "no group": "TypeError: group must be a process group, such as torch.distributed.group.WORLD once",
            "none": "init_process_group was called, got NoneType",
            "other group": "ValueError: this process is not in the group",
            "other group, bounds": "ValueError: this process is not in the group",
            "list": "TypeError: cu_seqlens must be an integer tensor, got list",
            "bounds, type": "TypeError: bounds must be a tuple of integers, got (0, 4.0, 8)",
            "bounds, none": "TypeError: bounds must be a tuple of integers, got None",
            "offsets, type": "TypeError: offsets must be a tuple of integers, got (0, 3.5, 8)",
            "offsets, none": "ValueError: offsets must be 0 and the end of each sequence, got ()",
            "own, dimension": "ValueError: x must have all 8 tokens in dimension 3, got [1, 4, 16]",
            "own, type": "TypeError: x must be a tensor, got list",
            "few tokens": "ValueError: 1 tokens cannot be split over 2 ranks: each needs one",
            "tokens": "must have 4 tokens of the split, got 3",
            "bounds": "ValueError: bounds must be 0 and the ends of 2 ranks, got (0, 4, 4, 8)",
            "empty": "ValueError: every rank must have at least one token, got bounds (0, 0, 8)",
            "offsets": "ValueError: cu_seqlens must end with the number of packed tokens T = 8, got 7",
            "rows": "ValueError: a split of packed sequences has one batch row: B must be 1, got 2",
            "own": "ValueError: x must have all 8 tokens in dimension 1, got [1, 4, 16]",
            "mask": "ValueError: tokens spread over ranks have no attention_mask or position_ids",
            "cache": "ValueError: tokens spread over ranks have no cache",
            "labels": "ValueError: give targets, not labels",
            "wrong ids": "ValueError: input_ids must be from 0 to 31 (vocab_size = 32), got 32",
            "wrong labels": "ValueError: labels must be from 0 to 31 (vocab_size = 32) or -100 (not predicted), got 32",
            "wrong targets": "ValueError: labels must be from 0 to 31 (vocab_size = 32) or -100",
            "labels and targets": "ValueError: give labels or targets, not both",
            "targets, shape": "ValueError: labels must have shape [1, 8], got [1, 4]",
            "counted": "ValueError: labels must be -100 at the first token of every packed sequence",
            "saved": "ValueError: the weights are spread over a mesh, this rank has a part of each",
            "state": "ValueError: softmax attention over ranks has no initial state",
        }
        assert expected.keys() == found.keys()
        for name, message in expected.items():
            assert message in found[name], (name, found[name])


def run_documentation(folder):
    """The blocks of docs/scale.md, on a process group that is there already. They save a model below `folder`."""
    os.chdir(folder)
    names: dict = {}
    for language, code in blocks((DOCS / "scale.md").read_text(encoding="utf-8")):
        assert language == "python"
        exec(compile(code.replace('dist.init_process_group("gloo")', ""), "scale.md", "exec"), names)
    return names["loss"].item(), tuple(names["y"].shape), names["split"].tokens


def test_the_examples_of_the_documentation_run(tmp_path):
    assert 'dist.init_process_group("gloo")' in (DOCS / "scale.md").read_text(encoding="utf-8")
    (loss, shape, tokens), other = on_ranks(2, run_documentation, str(tmp_path))
    assert loss == other[0] > 1
    assert VarlaForCausalLM.from_pretrained(tmp_path / "model").config.layer_mechanisms == ["gated-vla"] * 2
    assert shape == (3, tokens, 32)
    assert tokens + other[2] == 101


def compiled():
    """Errors of a compiled layer over ranks; and what is said if all of it must be one graph."""
    torch.manual_seed(0)
    layer, x = build("gated-vla", d_model=8, n_heads=2, conv=4).double(), torch.randn(1, 12, 8, dtype=torch.float64)
    split = Split.even(dist.group.WORLD, 12)
    wanted = layer(split.own(x), cu_seqlens=split)[0]
    found = torch.compile(layer, backend="eager")(split.own(x), cu_seqlens=split)[0]
    torch._dynamo.reset()
    with pytest.raises(Exception, match="cannot trace what ranks exchange"):
        torch.compile(layer, backend="eager", fullgraph=True)(split.own(x), cu_seqlens=split)
    return float((found - wanted).abs().max())


def test_compiled_models_exchange_outside_of_their_graphs():
    assert on_ranks(2, compiled) == [0, 0]
