"""What holds for every task: settings that are checked and can be recorded, and draws that can be repeated."""

import dataclasses
import json
import pickle
import re

import pytest
import torch

from tests.tasks.readers import CASES, IDS, generator
from varla import tasks

CASE = pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)


def test_names():
    assert tasks.names() == (
        "mqar",
        "mqar-zoology",
        "mqar-disjoint",
        "mqar-ood",
        "copy",
        "copy-identity",
        "noisy-recall",
    )


@CASE
def test_equal_generators_give_equal_batches_and_stay_equal(name, settings):
    task, first, second = tasks.make(name, **settings), generator(7), generator(7)
    for size in (3, 1, 8):
        for x, y in zip(task.batch(size, generator=first), task.batch(size, generator=second), strict=True):
            assert torch.equal(x, y)
        assert torch.equal(first.get_state(), second.get_state())


@CASE
def test_other_seeds_and_later_batches_differ(name, settings):
    task, g = tasks.make(name, **settings), generator(7)
    one, two, other = task.batch(64, g), task.batch(64, g), task.batch(64, generator(8))
    assert not torch.equal(one[0], two[0])
    assert not torch.equal(one[0], other[0])
    assert not torch.equal(one[0][0].expand(64, -1), one[0]), "rows differ"


@CASE
def test_the_global_generator_is_left_alone(name, settings):
    before = torch.get_rng_state()
    task = tasks.make(name, **settings)
    task.batch(4, generator())
    task.example(generator())
    assert torch.equal(torch.get_rng_state(), before)


@CASE
def test_settings_can_be_recorded_and_remade(name, settings):
    task = tasks.make(name, **settings)
    recorded = json.loads(json.dumps(task.settings()))
    again = tasks.make(**recorded)
    assert recorded.items() >= {"name": name, **settings}.items()
    assert again == task
    assert hash(again) == hash(task)
    assert pickle.loads(pickle.dumps(task)) == task
    assert torch.equal(again.batch(4, generator())[0], task.batch(4, generator())[0])


@pytest.mark.parametrize("name", tasks.names())
def test_a_length_of_none_is_recorded_as_the_number_it_stands_for(name):
    task = tasks.make(name, seq_len=None)
    assert task == tasks.make(name) == tasks.make(name, seq_len=task.seq_len)
    assert task.settings()["seq_len"] == task.seq_len
    assert task != tasks.make(name, seq_len=task.seq_len + 2)


def test_tasks_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        tasks.make("mqar").n = 3


def test_tasks_are_evaluated_on_themselves():
    for name in set(tasks.names()) - {"mqar-ood"}:
        task = tasks.make(name)
        assert task.evaluations() == {"eval": task}


@pytest.mark.parametrize("keys", ["id", "ood"])
def test_out_of_distribution_evaluations(keys):
    evaluations = tasks.make("mqar-ood", n=24, keys=keys).evaluations()
    assert list(evaluations) == ["id", "ood"]
    seen = {}
    for which, task in evaluations.items():
        assert tasks.make(**task.settings()) == task
        inputs, labels = task.batch(200, generator())
        assert (inputs[:, 48] == 127).all()
        seen[which] = set(inputs[:, 0:48:2].flatten().tolist())
        assert set(labels[labels != -100].tolist()) == set(range(127))
    assert seen == {"id": set(range(64)), "ood": set(range(64, 127))}
    assert tasks.make("mqar-ood", n=24) == evaluations["id"]


REFUSED = [
    (
        "mqa",
        {},
        ValueError,
        r"unknown task 'mqa'; did you mean 'mqar'\? \(allowed: mqar, mqar-zoology, .*noisy-recall\)$",
    ),
    ("MQAR_OOD", {}, ValueError, "did you mean 'mqar-ood'"),
    (3, {}, TypeError, "task must be a string, got 3"),
    ("mqar", {"vocab": 64}, ValueError, r"'vocab' of task 'mqar'; did you mean 'vocab_size'\? \(allowed: .*seq_len.*n"),
    ("copy", {"n": 4}, ValueError, r"unknown setting 'n' of task 'copy'.*allowed: seq_len, vocab_size\)$"),
    ("mqar", {"power": 0.1}, ValueError, "unknown setting 'power'"),
    ("mqar", {"n": 0}, ValueError, "n must be at least 1, got 0"),
    ("mqar", {"n": 4.0}, TypeError, r"n must be an integer, got 4.0 \(float\)"),
    ("mqar", {"n": True}, TypeError, "n must be an integer, got True"),
    ("mqar", {"n": None}, TypeError, "n must be an integer, got None"),
    ("mqar", {"n": 128}, ValueError, "n must be at most 127 for mqar with vocab_size=128.*got 128"),
    ("mqar", {"n": 8, "seq_len": 24}, ValueError, r"seq_len must be at least 25 \(3n\+1.*got 24"),
    ("mqar", {"seq_len": "64"}, TypeError, "seq_len must be an integer, got '64'"),
    ("mqar", {"vocab_size": 1}, ValueError, "vocab_size must be at least 2.*got 1"),
    ("mqar", {"vocab_size": 9.5}, TypeError, "vocab_size must be an integer"),
    ("mqar-disjoint", {"n": 65}, ValueError, "n must be at most 64"),
    ("mqar-disjoint", {"vocab_size": 2}, ValueError, "vocab_size must be at least 3"),
    ("mqar-ood", {"n": 64}, ValueError, "n must be at most 63"),
    ("mqar-ood", {"keys": "test"}, ValueError, "keys 'test'.*allowed: id, ood"),
    ("mqar-ood", {"keys": 1}, TypeError, "keys must be a string, got 1"),
    ("mqar-zoology", {"n": 8, "seq_len": 33}, ValueError, "seq_len must be even for mqar-zoology, got 33"),
    ("mqar-zoology", {"n": 8, "seq_len": 30}, ValueError, r"seq_len must be at least 32 \(4n.*got 30"),
    ("mqar-zoology", {"n": 8, "vocab_size": 16}, ValueError, "n must be at most 7"),
    ("mqar-zoology", {"vocab_size": 3}, ValueError, "vocab_size must be at least 4"),
    ("mqar-zoology", {"power": 0}, ValueError, "power must be greater than 0, got 0"),
    ("mqar-zoology", {"power": float("nan")}, ValueError, "power must be finite"),
    ("mqar-zoology", {"power": "small"}, TypeError, "power must be a number, got 'small'"),
    ("copy", {"seq_len": 63}, ValueError, "seq_len must be even for copy, got 63"),
    ("copy", {"seq_len": 0}, ValueError, "seq_len must be at least 2.*got 0"),
    ("copy", {"vocab_size": 1}, ValueError, "vocab_size must be at least 2"),
    ("copy-identity", {"seq_len": 2}, ValueError, "seq_len must be at least 3.*got 2"),
    ("noisy-recall", {"n": 57}, ValueError, "n must be at most 56"),
    ("noisy-recall", {"fillers": 0}, ValueError, "fillers must be at least 1, got 0"),
    ("noisy-recall", {"fillers": 126}, ValueError, "vocab_size must be at least 129"),
    ("noisy-recall", {"n": 8, "seq_len": 24}, ValueError, "seq_len must be at least 25"),
]


@pytest.mark.parametrize(("name", "settings", "error", "message"), REFUSED)
def test_what_is_refused(name, settings, error, message):
    with pytest.raises(error) as caught:
        tasks.make(name, **settings)
    assert re.search(message, str(caught.value)), str(caught.value)


EDGES = [
    ("mqar", {"n": 127}),
    ("mqar", {"n": 1, "vocab_size": 2}),
    ("mqar-disjoint", {"n": 64}),
    ("mqar-ood", {"n": 63, "keys": "ood"}),
    ("mqar-zoology", {"n": 7, "vocab_size": 16, "seq_len": 28}),
    ("copy", {"seq_len": 2, "vocab_size": 2}),
    ("copy-identity", {"seq_len": 3, "vocab_size": 2}),
    ("noisy-recall", {"n": 56, "seq_len": 169}),
    ("noisy-recall", {"n": 1, "fillers": 125}),
]


@pytest.mark.parametrize(("name", "settings"), EDGES)
def test_the_last_settings_that_are_allowed_work(name, settings):
    task = tasks.make(name, **settings)
    assert task.batch(2, generator())[0].shape == (2, task.seq_len)


def test_batch_arguments_are_checked():
    task = tasks.make("mqar")
    for size, error in ((0, ValueError), (-3, ValueError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match=f"batch_size must be .*{size}"):
            task.batch(size, generator=generator())
    with pytest.raises(TypeError, match=r"generator must be a torch\.Generator, got int"):
        task.batch(2, generator=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@CASE
def test_batches_are_drawn_on_the_device_of_the_generator(name, settings):
    from tests.tasks.test_layouts import labels_by_reader

    task = tasks.make(name, **settings)
    inputs, labels = task.batch(20, torch.Generator("cuda").manual_seed(0))
    again, _ = task.batch(20, torch.Generator("cuda").manual_seed(0))
    assert inputs.is_cuda
    assert labels.is_cuda
    assert torch.equal(inputs, again)
    assert labels.tolist() == labels_by_reader(name, inputs, settings)
