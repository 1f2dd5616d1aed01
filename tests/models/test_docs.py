"""docs/models.md: its examples run, one after the other, and what it says of them holds."""

import re
from pathlib import Path

import torch

TEXT = (Path(__file__).parent.parent.parent / "docs" / "models.md").read_text()


def test_the_examples_run():
    names: dict = {}
    torch.manual_seed(0)
    for example in re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL):
        exec(compile(example, "docs/models.md", "exec"), names)
    assert torch.allclose(names["a"], names["b"])
    assert names["session"].position == len("Once upon a time") + 5
    assert names["text"].shape == (2, 17)
    assert names["second"].shape == (1, 30)
    assert names["state"].memory.t.tolist() == [10, 6]
    assert names["output"].logits.shape == (2, 3)
    assert names["cache"].get_seq_length() == 29
