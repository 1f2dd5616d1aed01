"""Settings of a language model's training: what is wrong is named by its path."""

import re

import pytest

from tests.lm.cases import settings
from varla.lm.settings import from_dict


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
