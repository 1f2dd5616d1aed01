"""Settings of a language model's training: what is wrong is named by its path."""

import re
from dataclasses import fields

import pytest
from transformers import TrainingArguments

from tests.lm.cases import settings
from varla.lm.settings import LAB_NAMES, check_train, from_dict
from varla.lm.training import DEFAULTS
from varla.training.config import TrainConfig


def test_they_come_back_from_plain_dictionaries():
    found = settings("*.txt", "train.learning_rate=3e-4", "seed=7")
    assert from_dict(found.to_dict()) == found
    assert found.train["learning_rate"] == 3e-4


def test_changes_alone_are_changes_to_the_smallest_preset():
    assert settings("*.txt", "model={mechanisms: linear}").model == {"preset": "5m", "mechanisms": "linear"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.contxt=3", "unknown key 'data.contxt'; did you mean 'data.context'"),
        ("data.context=1", "data.context must be at least 2"),
        ("data.context=long", "data.context must be int"),
        ("data.validation=1.5", "data.validation, as a share, must be below 1"),
        ("data.train={dataset: x, colum: y}", "did you mean 'data.train.column'"),
        ("data.train={split: train}", "data.train must be files, or name a dataset"),
        ("data.train=[]", "data.train must name text"),
        ("data.train=5", "data.train must be str or list or keys and values, got 5"),
        ("data.train=[a.txt, 5]", "data.train must be paths or patterns, got 5 (int) among them"),
        ("data.train={dataset: 5}", "data.train.dataset must be text, got 5 (int)"),
        ("data.validation=null", "data.validation must be str or list or keys and values or float, got None"),
        ("data.validation=[[a.txt]]", "data.validation must be paths or patterns, got ['a.txt'] (list) among them"),
        ("model={folder: 5}", "model.folder must be a path, got 5 (int)"),
        ("seed=-1", "seed must be at least 0, got -1"),
        ("seed=4294967296", "seed must be below 2"),
        ("model={folder: x, hidden_size: 32}", "nothing beside it can be changed"),
        ("train.output_dir=x", "train.output_dir cannot be set: it is the run's folder"),
        ("train.seed=3", "it is the key `seed`"),
        ("evaluate.contexts=[1]", "evaluate.contexts must be at least 2"),
        ("sed=3", "unknown key 'sed'; did you mean 'seed'"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        settings("*.txt", change)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rat", 1, "unknown key 'train.learning_rat'; did you mean 'train.learning_rate'?"),
        ("lr", 1e-3, "unknown key 'train.lr': here it is train.learning_rate, as the Trainer calls it"),
        ("steps", 3, "here it is train.max_steps"),
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
def test_a_wrong_argument_of_the_trainer_is_named_before_its_first_step(key, value, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        check_train({key: value})


def test_settings_of_the_lab_are_named_as_the_trainer_names_them():
    arguments = {each.name for each in fields(TrainingArguments)}
    assert set(LAB_NAMES) <= {each.name for each in fields(TrainConfig)} - arguments
    assert set(LAB_NAMES.values()) <= arguments


def test_what_the_trainer_takes_is_taken():
    check_train(DEFAULTS)
    for key, value in [
        ("max_steps", -1), ("warmup_steps", 100), ("save_total_limit", None), ("tf32", None), ("learning_rate", 0),
        ("fsdp", True), ("fsdp_config", {"version": 2}), ("report_to", ["none"]), ("max_grad_norm", float("inf")),
        ("lr_scheduler_type", "cosine"), ("eval_strategy", "steps"), ("debug", ""), ("logging_steps", 0.1),
    ]:  # fmt: skip
        check_train({key: value})
