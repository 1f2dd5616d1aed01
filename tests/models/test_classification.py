"""Sequence classification: which token is read, the three kinds of labels, saving, loading, and training."""

import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments, pipeline

from tests.models.cases import KINDS, SIDES, VOCABULARY, config, model, padded, tokens
from varla.lm.text import load_tokenizer
from varla.models import VarlaCache, VarlaForCausalLM, VarlaForSequenceClassification, VarlaModel

PAD = 0


def classifier(kind="vla", dtype=torch.float64, **changes):
    torch.manual_seed(0)
    made = config(**{**KINDS[kind], "num_labels": 3, "pad_token_id": PAD, **changes})
    return VarlaForSequenceClassification(made).to(dtype).eval()


def words(B, T):
    """Tokens that are no padding."""
    return tokens(B, T) % (VOCABULARY - 1) + 1


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_last_token_that_is_no_padding_is_read(kind, side):
    net = classifier(kind)
    ids, mask = padded([7, 3, 12, 1], side)
    logits = net(ids, attention_mask=mask).logits
    assert logits.shape == (4, 3)
    embeds = net.get_input_embeddings()(ids)
    assert torch.equal(net(inputs_embeds=embeds, attention_mask=mask).logits, logits)
    for row, keep, found in zip(ids, mask.bool(), logits, strict=True):
        alone = net.model(row[None, keep]).last_hidden_state[0, -1]
        torch.testing.assert_close(found, net.score(alone), rtol=1e-10, atol=1e-12)


def test_without_a_mask_it_is_the_last_that_is_not_the_padding_token():
    net, ids = classifier(), words(3, 9)
    wanted = net.score(net.model(ids[:, :5]).last_hidden_state[:, -1])
    ids[:, 5:] = PAD
    for positions in (None, torch.arange(9)[None]):
        torch.testing.assert_close(net(ids, position_ids=positions).logits, wanted)
    everything = net(ids, attention_mask=torch.ones(3, 9)).logits  # the padding token may end a text, too
    torch.testing.assert_close(everything, net.score(net.model(ids).last_hidden_state[:, -1]))


def test_packed_sequences_have_scores_of_their_own_and_a_cache_goes_on():
    net, ids = classifier(), words(1, 12)
    packed = net(ids, cu_seqlens=torch.tensor([0, 5, 12])).logits
    torch.testing.assert_close(packed, torch.cat([net(ids[:, :5]).logits, net(ids[:, 5:]).logits]))
    cache = VarlaCache(net.config)
    net(ids[:, :8], past_key_values=cache)
    torch.testing.assert_close(net(ids[:, 8:], past_key_values=cache).logits, net(ids).logits)
    after = net(ids[:, :1], past_key_values=cache, attention_mask=torch.zeros(1, 1, dtype=torch.int64)).logits
    torch.testing.assert_close(after, net(ids).logits)


@pytest.mark.parametrize(
    ("problem", "num_labels", "labels", "loss"),
    [
        ("single_label_classification", 3, torch.tensor([2, 0, -100, 1]), cross_entropy),
        ("single_label_classification", 3, torch.tensor([2, 0, 0, 1], dtype=torch.int32), cross_entropy),
        ("multi_label_classification", 3, torch.tensor([[0.0, 1, 1]] * 4), binary_cross_entropy_with_logits),
        ("multi_label_classification", 3, torch.tensor([[False, True, True]] * 4), binary_cross_entropy_with_logits),
        ("regression", 1, torch.tensor([0.5, -1.0, 2.0, 0.0]), mse_loss),
        ("regression", 1, torch.tensor([[1], [2], [3], [4]]), mse_loss),
        ("regression", 2, torch.ones(4, 2), mse_loss),
    ],
)
def test_the_loss_is_that_of_the_problem(problem, num_labels, labels, loss):
    ids = words(4, 6)
    for given in (problem, None):
        if given is None and problem == "regression" and num_labels > 1:
            continue  # floats for several labels are taken for multi-label, as in transformers
        net = classifier(num_labels=num_labels, problem_type=given)
        output = net(ids, labels=labels)
        wanted = labels.long() if loss is cross_entropy else labels.double().view(4, num_labels)
        torch.testing.assert_close(output.loss, loss(output.logits, wanted))
        assert net.config.problem_type == problem
        output.loss.backward()
        assert net.model.embed_tokens.weight.grad.abs().sum() > 0
        as_tuple = net(ids, labels=labels, return_dict=False, use_cache=False)
        assert torch.equal(as_tuple[0], output.loss)


@pytest.mark.parametrize(
    ("labels", "changes", "message"),
    [
        ([0, 1], {}, r"labels must be a tensor of classes \[2\], or of numbers \[2, 3\], got list"),
        (torch.tensor([0, 3]), {}, r"labels must be from 0 to 2 \(num_labels = 3\) or -100 \(left out\), got 3"),
        (torch.tensor([0, 1, 2]), {}, r"shape \[2\] or \[2, 1\] for single_label_classification .* got \[3\]"),
        (torch.ones(2, 3).long(), {}, r"got \[2, 3\]; is each a 0 or 1\? Then set config.problem_type to multi_label"),
        (torch.ones(2), {}, r"shape \[2, 3\] for multi_label_classification with num_labels = 3, got \[2\]"),
        (torch.ones(2), {"problem_type": "single_label_classification"}, "labels must be integers, the classes"),
        (torch.ones(2, 3), {"num_labels": 1}, r"shape \[2\] or \[2, 1\] for regression with num_labels = 1"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, changes, message):
    with pytest.raises((ValueError, TypeError), match=message):
        classifier(**changes)(words(2, 5), labels=labels)


def test_without_a_padding_token_one_row_at_a_time():
    net, ids = classifier(pad_token_id=None), words(2, 5)
    torch.testing.assert_close(net(ids[:1]).logits, net.score(net.model(ids[:1]).last_hidden_state[:, -1]))
    for inputs in ({"input_ids": ids}, {"inputs_embeds": net.get_input_embeddings()(ids)}):
        with pytest.raises(ValueError, match=r"config\.pad_token_id is None, and the batch has 2 rows"):
            net(**inputs)
    with pytest.raises(ValueError, match="give either input_ids or inputs_embeds"):
        net()


def test_it_is_saved_and_loaded_and_its_body_is_a_model(tmp_path):
    net, ids = classifier("hybrid", torch.float32, problem_type="single_label_classification"), words(2, 7)
    net.save_pretrained(tmp_path)
    for cls in (VarlaForSequenceClassification, AutoModelForSequenceClassification):
        found = cls.from_pretrained(tmp_path)
        assert type(found) is VarlaForSequenceClassification
        assert (found.num_labels, found.config.problem_type) == (3, "single_label_classification")
        assert torch.equal(found(ids).logits, net(ids).logits)
    assert "AutoModelForSequenceClassification.from_pretrained" in (tmp_path / "README.md").read_text()
    body = VarlaModel.from_pretrained(tmp_path)
    assert torch.equal(body(ids).last_hidden_state, net.model(ids).last_hidden_state)
    with pytest.raises(ValueError, match=r"score\.weight has shape \[3, 24\] in the checkpoint and \[5, 24\]"):
        VarlaForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    assert torch.equal(VarlaForCausalLM.from_pretrained(tmp_path).lm_head.weight, body.embed_tokens.weight)  # tied
    with pytest.raises(ValueError, match=r"1 are missing, 'lm_head\.weight' among them"):
        VarlaForCausalLM.from_pretrained(tmp_path, tie_word_embeddings=False)


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_models_weights_get_a_new_head_and_transformers_says_so(tied, tmp_path, caplog):
    language = model("hybrid", tie_word_embeddings=tied)
    language.save_pretrained(tmp_path)
    found, info = AutoModelForSequenceClassification.from_pretrained(tmp_path, num_labels=4, output_loading_info=True)
    assert set(info["missing_keys"]) == {"score.weight"}
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    assert found.score.weight.shape == (4, 24)
    assert found.score.weight.std() > 0
    for name, weight in language.model.state_dict().items():
        assert torch.equal(found.model.state_dict()[name], weight), name
    caplog.clear()
    caplog.set_level("WARNING", "transformers")  # commands of other tests set it to errors alone
    VarlaForSequenceClassification.from_pretrained(tmp_path, num_labels=4)
    (report,) = [record.getMessage() for record in caplog.records if "score.weight" in record.getMessage()]
    assert "MISSING" in report
    assert "lm_head" not in report


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant):
    net, (ids, mask) = classifier("hybrid").train(), padded([7, 3, 12], "right")
    labels = torch.tensor([0, 1, 2])

    def gradients():
        net.zero_grad()
        net(ids, attention_mask=mask, labels=labels).loss.backward()
        return {name: parameter.grad.clone() for name, parameter in net.named_parameters()}

    wanted = gradients()
    net.gradient_checkpointing_enable({"use_reentrant": reentrant})
    for name, gradient in gradients().items():
        torch.testing.assert_close(gradient, wanted[name])


def test_trainer_learns_which_token_a_text_begins_with(tmp_path):
    """After 6 to 11 others, padded on the left and on the right."""
    net = classifier(dtype=torch.float32, num_labels=2, initializer_range=0.1)
    rows = []
    for i in range(48):
        ids = words(1, 13)[0][: 6 + i % 6].clone()
        ids[0] = 1 + i % 2
        rows.append({"input_ids": ids, "labels": i % 2})

    def collate(batch):
        T = max(len(row["input_ids"]) for row in batch)
        ids = torch.full((len(batch), T), PAD)
        for i, row in enumerate(batch):
            n = len(row["input_ids"])
            ids[i, slice(T - n, T) if i % 2 else slice(0, n)] = row["input_ids"]
        return {
            "input_ids": ids,
            "attention_mask": (ids != PAD).long(),
            "labels": torch.tensor([row["labels"] for row in batch]),
        }

    arguments = TrainingArguments(
        str(tmp_path), max_steps=24, per_device_train_batch_size=8, gradient_accumulation_steps=2, learning_rate=1e-2,
        report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True, gradient_checkpointing=True,
    )  # fmt: skip
    trainer = Trainer(
        net, arguments, train_dataset=rows, eval_dataset=rows, data_collator=collate,
        compute_metrics=lambda found: {"right": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )  # fmt: skip
    trainer.train()
    assert trainer.evaluate()["eval_right"] == 1.0
    assert trainer.predict(rows).predictions.shape == (48, 2)


def test_a_pipeline_classifies_texts(tmp_path, caplog):
    caplog.set_level("WARNING", "transformers")
    tokenizer = load_tokenizer("bytes")
    special = {"pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)}
    classifier(dtype=torch.float32, id2label={0: "bad", 1: "good"}, num_labels=2, **special).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    classify = pipeline("text-classification", str(tmp_path))
    texts = ["Once upon a time", "Hi"]
    together = classify(texts, batch_size=2)
    assert {found["label"] for found in together} <= {"bad", "good"}
    for text, found in zip(texts, together, strict=True):
        assert classify(text)[0]["score"] == pytest.approx(found["score"], abs=1e-6)
    assert not [record for record in caplog.records if "not supported" in record.getMessage()]
