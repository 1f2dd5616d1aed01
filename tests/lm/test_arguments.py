"""The Trainer's settings: what it would stumble over at its first step is named before."""

import re

import pytest

from varla.lm.arguments import check_arguments
from varla.lm.training import DEFAULTS


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rat", 1, "unknown key 'train.learning_rat'; did you mean 'train.learning_rate'?"),
        ("learning_rate", "fast", "train.learning_rate must be a number, got 'fast' (str)"),
        ("learning_rate", -1, "train.learning_rate must be at least 0, got -1"),
        ("weight_decay", None, "train.weight_decay must be a number, got None (NoneType)"),
        ("adam_beta2", 1.0, "train.adam_beta2 must be below 1, got 1.0"),
        ("max_steps", "many", "train.max_steps must be an integer, got 'many' (str)"),
        ("max_steps", 0, "train.max_steps must be at least 1, or -1 (as many as num_train_epochs take), got 0"),
        ("max_steps", -5, "train.max_steps must be at least 1, or -1"),
        ("num_train_epochs", 0, "train.num_train_epochs must be greater than 0, got 0"),
        ("per_device_train_batch_size", 0, "train.per_device_train_batch_size must be at least 1, got 0"),
        ("gradient_accumulation_steps", 0, "train.gradient_accumulation_steps must be at least 1, got 0"),
        ("dataloader_num_workers", -1, "train.dataloader_num_workers must be at least 0, got -1"),
        ("save_total_limit", "two", "train.save_total_limit must be an integer, got 'two' (str)"),
        ("use_cpu", "maybe", "train.use_cpu must be True or False, got 'maybe'"),
        ("bf16", 1, "train.bf16 must be True or False, got 1"),
    ],
)
def test_what_is_wrong_is_named(key, value, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        check_arguments({key: value})


def test_what_the_trainer_takes_is_taken():
    check_arguments(DEFAULTS)
    for key, value in [
        ("max_steps", -1), ("warmup_steps", 100), ("save_total_limit", None), ("tf32", None), ("learning_rate", 0),
        ("fsdp", True), ("fsdp_config", {"version": 2}), ("report_to", ["none"]), ("max_grad_norm", float("inf")),
        ("lr_scheduler_type", "cosine"), ("eval_strategy", "steps"), ("debug", ""), ("logging_steps", 0.1),
    ]:  # fmt: skip
        check_arguments({key: value})
