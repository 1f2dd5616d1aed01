"""Pipelines and collators with the byte tokenizer, as it comes: it pads, and a saved folder is enough."""

import pytest
import torch
from transformers import DataCollatorForLanguageModeling, pipeline

from varla.lm.text import load_tokenizer
from varla.models import VarlaConfig, VarlaForCausalLM

TEXTS = ["Once upon a time", "Hi", "A tale"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    tokenizer, where = load_tokenizer("bytes"), tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
    special = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = VarlaConfig(
        vocab_size=len(tokenizer), mechanisms=["vla", "softmax"], initializer_range=0.3, **sizes, **special
    )
    VarlaForCausalLM(config).save_pretrained(where)
    tokenizer.save_pretrained(where)
    return where


def test_texts_in_batches_as_one_by_one(folder):
    generate = pipeline("text-generation", str(folder))
    options = {"max_new_tokens": 6, "do_sample": False, "return_tensors": True}
    together = generate(TEXTS, batch_size=3, **options)
    for text, (found,) in zip(TEXTS, together, strict=True):
        apart = generate(text, **options)[0]["generated_token_ids"]
        assert found["generated_token_ids"][-6:] == apart[-6:]


def test_the_model_is_known_to_the_pipeline(folder, caplog):
    caplog.set_level("WARNING", "transformers")
    pipeline("text-generation", str(folder))
    assert not [record for record in caplog.records if "not supported" in record.getMessage()]


def test_a_collator_pads(folder):
    tokenizer = load_tokenizer(str(folder))
    assert (tokenizer.pad_token, tokenizer.padding_side, len(tokenizer)) == ("<|end|>", "left", 257)
    batch = DataCollatorForLanguageModeling(tokenizer, mlm=False)([tokenizer(text) for text in TEXTS])
    assert batch["attention_mask"].sum(1).tolist() == [len(text) for text in TEXTS]
    net = VarlaForCausalLM.from_pretrained(folder)
    apart = [
        net(ids, labels=ids, num_items_in_batch=1).loss
        for ids in (tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS)
    ]
    assert torch.allclose(net(**batch, num_items_in_batch=1).loss, sum(apart), rtol=1e-5)
