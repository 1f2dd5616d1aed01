"""Where a step's time goes, at the smallest size and on the CPU; mistakes."""

import pytest
import torch

from benchmarks.lm import profile
from benchmarks.lm.contenders import QUICK


def test_a_step_is_taken_apart(capsys):
    assert profile.main(["--quick", "linear", "--kernels", "5"]) == 0
    title, _, *rows = capsys.readouterr().out.strip().splitlines()
    assert title.startswith("linear: ")
    assert len(rows) == 6  # a line under the header


def test_the_parts_are_the_whole():
    milliseconds, kernels = profile.taken("vla", QUICK, torch.device("cpu"))
    assert milliseconds > 0
    assert [each[0] for each in kernels] == sorted((each[0] for each in kernels), reverse=True)
    assert any("mm" in key for _, _, key in kernels)
    assert all(count >= 1 for _, count, _ in kernels)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--quick", "mamba"], "there is no contender 'mamba'; there are: softmax, linear"),
        (["--quick", "--kernels", "0"], "--kernels must be at least 1, got 0"),
    ],
)
def test_mistakes_are_named(arguments, message, capsys):
    with pytest.raises(SystemExit):
        profile.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    with pytest.raises(SystemExit):
        profile.main([])
    assert "there is none here" in capsys.readouterr().err
