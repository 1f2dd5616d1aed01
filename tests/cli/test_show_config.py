"""--show-config: every key with a meaning, as YAML that the same command reads back to the same run."""

import re
from dataclasses import fields

import pytest
from transformers import TrainingArguments

from tests.cli.cases import refused, varla
from varla.cli.meanings import TRAIN, TRAIN_LM
from varla.cli.show_config import lab_settings, language_settings
from varla.layers import MECHANISMS
from varla.lm.settings import OURS
from varla.lm.settings import from_dict as language
from varla.models import VarlaConfig, preset
from varla.runs.safe_yaml import parse
from varla.tasks import names
from varla.training import build_model, from_dict

SMALL = {"d_model": 16, "n_heads": 2, "ffn": 16}


def keys(values, path=""):
    for key, value in values.items():
        if isinstance(value, dict) and not path and value:
            yield from keys(value, f"{key}.")
        else:
            yield f"{path}{key}"


def explained(text):
    """Paths of all settings, those in comments too, and whether each has a meaning."""
    found, group = {}, ""
    for line in text.splitlines():
        setting, _, meaning = re.sub("^  # ", "  ", line).partition(" # ")
        key = setting.split(":")[0]
        if setting.endswith(":"):
            group = f"{key}."
        else:
            found[f"{group if key.startswith(' ') else ''}{key.strip()}"] = bool(meaning)
    return found


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("protocol", ["paper", "tuned"])
def test_a_lab_run_is_explained_and_read_back(mechanism, protocol):
    for task in names():
        config = from_dict({"mechanism": mechanism, "preset": protocol, "task": {"name": task}, "model": SMALL})
        text = lab_settings(config)
        assert all(explained(text).values()), text
        again = from_dict(parse(text))
        assert build_model(again).config.layer.items() >= build_model(config).config.layer.items()
        assert (again.train, again.seed) == (config.train, config.seed)
        assert set(keys(parse(text))) <= set(TRAIN)


def test_no_meaning_is_of_a_setting_that_is_gone():
    shown = set()
    for mechanism in MECHANISMS:
        for task in names():
            text = lab_settings(from_dict({"mechanism": mechanism, "task": {"name": task}, "model": SMALL}))
            shown |= set(explained(text))
    assert shown == set(TRAIN)


def test_a_language_model_is_explained_and_read_back():
    chosen = language({"data": {"train": ["a.txt"]}, "model": {"preset": "30m", "mechanisms": "linear"}})
    text = language_settings(chosen)
    found = explained(text)
    assert all(found.values()), [key for key, meaning in found.items() if not meaning]
    arguments = {f"train.{each.name}" for each in fields(TrainingArguments) if each.init and each.name not in OURS}
    assert set(found) == {*TRAIN_LM, *arguments}
    again = language(parse(text))
    assert (again.data, again.evaluate, again.seed) == (chosen.data, chosen.evaluate, chosen.seed)
    changes = {key: value for key, value in again.model.items() if key != "preset"}
    assert preset("30m", **changes).to_dict() == preset("30m", mechanisms="linear").to_dict()
    assert {f"model.{name}" for name in VarlaConfig.__annotations__} <= set(TRAIN_LM)


def test_commands_print_it_and_train_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = varla("train", "--show-config", "--set", "train.lr=1e-3")
    assert result.exit_code == 0, result.output
    assert parse(result.stdout)["train"]["lr"] == 1e-3
    result = varla("train-lm", "--show-config", "--set", "train.learning_rate=1e-4")
    assert result.exit_code == 0, result.output
    assert parse(result.stdout)["train"]["learning_rate"] == 1e-4
    assert refused(varla("train-lm", "--show-config", "--set", "train.lr=1e-4"), "train.learning_rate")
    assert list(tmp_path.iterdir()) == []


def test_help_names_a_setting_that_exists():
    assert "train.learning_rate=1e-3" in " ".join(varla("train-lm", "--help").stdout.replace("│", " ").split())
    assert "train.lr=1e-3" in " ".join(varla("train", "--help").stdout.replace("│", " ").split())
