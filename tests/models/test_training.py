"""Training: gradient checkpointing, torch.compile and torch.export, and Hugging Face's Trainer, padded and packed."""

import pytest
import torch
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

from tests.models.cases import KINDS, config, decode, model, tokens
from tests.ops.cases import error
from varla.models import VarlaForCausalLM


def gradients(net, ids, **given):
    net.zero_grad()
    net(input_ids=ids, labels=ids, **given).loss.backward()
    return {name: parameter.grad.clone() for name, parameter in net.named_parameters()}


def test_reentrant_checkpointing_through_a_cache_is_refused():
    net = model().train()
    first = net(tokens(2, 6), use_cache=True).past_key_values
    net.gradient_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ValueError, match="would lose the gradients that flow through past_key_values"):
        net(tokens(2, 6, seed=2), past_key_values=first)
    assert net(tokens(2, 6, seed=2), past_key_values=first.detach()).logits.shape == (2, 6, 50)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_checkpointing_gives_the_same_gradients(kind, reentrant):
    net, ids = model(kind).train(), tokens(2, 20)
    mask = torch.tensor([[1] * 20, [0] * 6 + [1] * 14])
    for given in ({}, {"attention_mask": mask}):
        net.gradient_checkpointing_disable()
        wanted = gradients(net, ids, **given)
        net.gradient_checkpointing_enable({"use_reentrant": reentrant})
        assert net.is_gradient_checkpointing
        found = gradients(net, ids, **given)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameter_gets_a_finite_gradient(kind):
    for name, gradient in gradients(model(kind, output_gate=True).train(), tokens(2, 20)).items():
        assert gradient.isfinite().all()
        assert gradient.abs().max() > 0, name


def test_data_parallel_is_refused():
    net = model().model
    with pytest.raises(ValueError, match="use DistributedDataParallel, by torchrun --nproc-per-node N"):
        net._replicate_for_data_parallel()(tokens(2, 6))
    assert net(tokens(2, 6)).last_hidden_state.shape == (2, 6, 24)


SHORT = {"mechanisms": ["vla", "softmax", "gated-vla"]}


def test_compiled_in_one_graph_forward_and_backward_for_any_length():
    net = model(**SHORT).train()
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="aot_eager")
    for T in (20, 9):
        found, wanted = gradients(compiled, tokens(2, T)), gradients(net, tokens(2, T))
        assert all(error(found[f"_orig_mod.{name}"], wanted[name]) <= 1e-4 for name in wanted)


@torch.no_grad()
def test_compiled_with_a_cache_in_one_graph_for_any_length():
    net = model(**SHORT)
    torch._dynamo.reset()
    compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="eager")
    for T in (20, 9, 41):
        found, wanted = compiled(tokens(2, T)), net(tokens(2, T))
        assert error(found.logits, wanted.logits) <= 1e-4
        more = tokens(2, 3, seed=2)
        following = [net(more, past_key_values=each.past_key_values).logits for each in (found, wanted)]
        assert error(*following) <= 1e-4


class Logits(torch.nn.Module):
    """A model as torch.export takes it: ids to logits."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, ids):
        return self.net(ids, use_cache=False).logits


@pytest.mark.parametrize("kind", ["vla", "hybrid"])
def test_exported_models_take_any_length(kind):
    """Up to far beyond the sizes from which kernels pay on a GPU."""
    net = model(kind)
    length = torch.export.Dim("T", min=2, max=2**20)
    found = torch.export.export(Logits(net), (tokens(1, 20),), dynamic_shapes={"ids": {1: length}}).module()
    for T in (20, 2, 33, 130):
        assert error(found(tokens(1, T)), net(tokens(1, T)).logits) <= 1e-5, T


@torch.no_grad()
def test_compiled_forward_and_decode_with_a_cache():
    net, ids = model(**SHORT), tokens(2, 20)
    torch._dynamo.reset()
    compiled = torch.compile(net)
    first = compiled(input_ids=ids[:, :16])
    assert error(first.logits, net(ids[:, :16]).logits) <= 1e-4
    torch._dynamo.reset()
    eager = torch.compile(net, backend="eager")
    rest = [eager(input_ids=ids[:, t : t + 1], past_key_values=first.past_key_values).logits for t in range(16, 20)]
    assert error(torch.cat(rest, 1), net(ids).logits[:, 16:]) <= 1e-4


def arguments(folder, **changes):
    return TrainingArguments(
        **{
            "output_dir": str(folder),
            "max_steps": 50,
            "per_device_train_batch_size": 4,
            "learning_rate": 1e-2,
            "logging_steps": 10,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "seed": 3,
            **changes,
        }
    )


def sentences(lengths):
    """Counting, modulo 11, from anywhere: the second token tells all that follow."""
    return [{"input_ids": [(i + j) % 11 for j in range(n)]} for i, n in enumerate(lengths)]


def fill(rows):
    """Right-padded, as transformers' collators do it."""
    T = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (T - len(row["input_ids"])) for row in rows])
    mask = torch.tensor([[1] * len(row["input_ids"]) + [0] * (T - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


LENGTHS = [9, 14, 5, 20, 11, 7, 16, 12] * 8


@pytest.mark.parametrize("kind", ["vla", "hybrid", "gated-vla"])
def test_a_trainer_run_lowers_the_loss_padded_and_packed_alike(kind, tmp_path):
    found = []
    for collator in (fill, DataCollatorWithFlattening()):
        net = model(kind, initializer_range=0.02)
        trainer = Trainer(net, arguments(tmp_path), train_dataset=sentences(LENGTHS), data_collator=collator)
        trainer.train()
        found.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert found[0][0] > 2
    assert found[0][-1] < 0.5 * found[0][0]
    assert error(torch.tensor(found[1]), torch.tensor(found[0])) <= 1e-2


def pack(rows):
    """As DataCollatorWithFlattening, but every token is a label."""
    ids = torch.tensor([[token for row in rows for token in row["input_ids"]]])
    position = torch.cat([torch.arange(len(row["input_ids"])) for row in rows])[None]
    return {"input_ids": ids, "position_ids": position, "labels": ids}


def test_labels_that_are_counted_and_not_predicted_are_refused(tmp_path):
    """The loss would depend on how the sequences are split into batches."""
    net, rows = model("vla"), sentences([3, 5, 4, 6])
    with pytest.raises(ValueError, match="labels must be -100 at the first token of every packed"):
        Trainer(net, arguments(tmp_path), train_dataset=rows, data_collator=pack).train()
    assert net(**pack(rows)).loss.isfinite()  # without a count, the mean is over what is predicted
    assert net(**pack(rows[:1]), num_items_in_batch=2).loss.isfinite()


@pytest.mark.parametrize("collator", [fill, DataCollatorWithFlattening()], ids=["padded", "packed"])
def test_the_loss_of_a_batch_does_not_depend_on_how_it_is_split(tmp_path, collator):
    """Rows of very different lengths: a mean of means would not be the mean."""
    found, losses = [], []
    for size, steps in ((8, 1), (2, 4), (1, 8)):
        net = model("vla")
        changes = {
            "max_steps": 1, "per_device_train_batch_size": size, "gradient_accumulation_steps": steps,
            "optim": "sgd", "learning_rate": 1.0, "max_grad_norm": 0.0, "logging_steps": 1,
        }  # fmt: skip
        rows = sentences([2, 3, 20, 18, 4, 2, 15, 3])
        trainer = Trainer(net, arguments(tmp_path, **changes), train_dataset=rows, data_collator=collator)
        trainer.train()
        losses.append(trainer.state.log_history[0]["loss"])
        found.append(torch.cat([parameter.detach().flatten() for parameter in net.parameters()]))
    assert max(error(each, found[0]) for each in found) <= 1e-5
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)


def test_a_checkpoint_of_the_trainer_is_gone_on_from(tmp_path):
    rows = sentences(LENGTHS)
    whole = model("vla", initializer_range=0.02)
    Trainer(
        whole,
        arguments(tmp_path, max_steps=6, save_strategy="steps", save_steps=3),
        train_dataset=rows,
        data_collator=fill,
    ).train()
    again = VarlaForCausalLM.from_pretrained(tmp_path / "checkpoint-3")
    trainer = Trainer(again, arguments(tmp_path, max_steps=6), train_dataset=rows, data_collator=fill)
    trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    for got, wanted in zip(again.parameters(), whole.parameters(), strict=True):
        assert error(got, wanted) <= 1e-5


def test_a_trainer_evaluates_and_predicts(tmp_path):
    net, rows = model("hybrid"), sentences([9, 9, 9])
    trainer = Trainer(net, arguments(tmp_path), eval_dataset=rows, data_collator=fill)
    ids = torch.tensor([row["input_ids"] for row in rows])
    assert abs(trainer.evaluate()["eval_loss"] - float(net(ids, labels=ids).loss.detach())) < 1e-4
    assert error(torch.from_numpy(trainer.predict(rows).predictions), net(ids).logits) <= 1e-4


@pytest.mark.parametrize("kind", ["hybrid", "gated-vla", "gated-deltanet"])
def test_autocast_to_bfloat16_trains_and_decodes(kind):
    net, ids = model(kind).train(), tokens(2, 20)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(net, ids)
    assert all(gradient.isfinite().all() for gradient in found.values())
    net.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        first = net(ids[:, :16])
        assert first.past_key_values.state.layers[0].memory.S.dtype == torch.float32
        rest = decode(net, ids[:, 16:], first.past_key_values)
        assert error(rest, net(ids).logits[:, 16:]) <= 0.1


def test_truncated_back_propagation_through_a_cache():
    net, ids = VarlaForCausalLM(config()).train(), tokens(1, 20)
    found = net(ids[:, :10], use_cache=True)
    net(ids[:, 10:], labels=ids[:, 10:], past_key_values=found.past_key_values.detach()).loss.backward()
    assert net.model.layers[0].mixer.k.weight.grad.isfinite().all()
