"""The folder of a lab run: settings that cannot be used name their file, because a command may read several."""

import pytest

from varla.training import Run, RunError


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("train: {stepz: 3}", r"config\.yaml: unknown key 'train\.stepz'; did you mean 'train\.steps'"),
        ("train: {steps: x}", r"config\.yaml: train\.steps must be int, got 'x'"),
        ("train: {steps: 0}", r"config\.yaml: train\.steps must be at least 1"),
        ("[1]", r"^[^:]*config\.yaml must hold keys and values"),
    ],
)
def test_settings_that_cannot_be_used(text, words, tmp_path):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ValueError, match=words):
        Run(tmp_path).config()


def test_a_folder_without_settings(tmp_path):
    with pytest.raises(RunError, match=f"^{tmp_path} holds no run"):
        Run(tmp_path).config()


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("record.json", '{"chance": {}}'),
        ("record.json", '{"parameters": NaN}'),
        ("record.json", '{"steps": "3"}'),
        ("metrics.jsonl", '{"step": 1.5, "loss": 2}\n'),
        ("metrics.jsonl", '{"step": 1, "loss": []}\n'),
        ("metrics.jsonl", f'{{"step": 1, "loss": {10**400}}}\n'),
    ],
)
def test_numbers_that_are_none(file, text, tmp_path):
    (tmp_path / file).write_text(text)
    with pytest.raises(RunError, match=f"{file} is damaged"):
        (Run(tmp_path).record if file == "record.json" else Run(tmp_path).metrics)()


def test_a_loss_that_is_no_number_can_be_read(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": NaN}\n')
    assert Run(tmp_path).metrics()[0]["step"] == 1
