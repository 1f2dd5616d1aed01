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
