"""A run's settings: defaults, what is refused and how."""

import pytest

from varla.runs.settings import dump
from varla.training import RunConfig, complete, from_dict, load


def test_defaults_are_the_papers():
    train = RunConfig().train
    assert (train.steps, train.batch_size, train.lr, train.warmup) == (3000, 64, 3e-4, 0.1)
    assert (train.beta1, train.beta2, train.adam_eps, train.weight_decay, train.clip) == (0.9, 0.999, 1e-8, 1e-2, 1.0)
    assert (train.eval_batches, train.eval_batch_size) == (15, 64)


def test_yaml_round_trip(tmp_path):
    config = from_dict({"mechanism": "linear", "task": {"name": "copy"}, "train": {"lr": 1, "steps": 7}})
    assert config.train.lr == 1.0
    assert isinstance(config.train.lr, float)
    (tmp_path / "c.yaml").write_text(dump(config.to_dict()))
    assert from_dict(load(tmp_path / "c.yaml")) == config
    (tmp_path / "d.yaml").write_text("train: {lr: 1e-3}")
    assert from_dict(load(tmp_path / "d.yaml")).train.lr == 1e-3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mechanisms": "vla"}, "unknown key 'mechanisms'; did you mean 'mechanism'"),
        ({"train": {"learning_rate": 1}}, r"unknown key 'train.learning_rate'"),
        ({"train": {"step": 1}}, r"unknown key 'train.step'; did you mean 'train.steps'"),
        ({"train": {"steps": 0}}, "train.steps must be at least 1"),
        ({"train": {"lr": -1.0}}, "train.lr must be greater than 0"),
        ({"train": {"warmup": 1.0}}, "train.warmup must be below 1"),
        ({"train": {"precision": "fp8"}}, "train.precision must be one of 'fp32', 'bf16'"),
    ],
)
def test_wrong_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        from_dict(values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"seed": "x"}, "seed must be int, got 'x'"),
        ({"seed": True}, "seed must be int, got True"),
        ({"train": {"steps": 1.5}}, "train.steps must be int, got 1.5"),
        ({"train": 3}, "train must hold keys and values, got 3"),
        ({"task": "mqar"}, "task must hold keys and values, got 'mqar'"),
    ],
)
def test_wrong_types_are_refused(values, message):
    with pytest.raises(TypeError, match=message):
        from_dict(values)


def test_the_default_task_is_filled_in_unless_another_is_chosen():
    assert complete({"seed": 3}, ["task.n"]) == {"seed": 3, "task": {"name": "mqar", "n": 8}}
    assert complete({"seed": 3}, ["task.name"]) == {"seed": 3}
    assert complete({"task": {"name": "copy"}}, []) == {"task": {"name": "copy"}}
