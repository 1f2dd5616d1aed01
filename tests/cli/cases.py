"""A run that takes a moment, and the command line called from within the test process."""

import yaml
from typer.testing import CliRunner

from varla.cli.main import app

TINY = {
    "task": {"name": "mqar", "n": 2},
    "model": {"d_model": 16, "n_heads": 2, "n_layers": 1, "ffn": 16},
    "train": {"steps": 4, "batch_size": 4, "eval_batches": 1, "eval_batch_size": 4, "log_every": 1, "eval_every": 2},
}


def varla(*arguments):
    """The result of `varla ARGUMENTS`: exit_code, stdout, stderr."""
    return CliRunner().invoke(app, [str(each) for each in arguments])


def write(path, values):
    path.write_text(yaml.safe_dump(values))
    return path


def refused(result, *words, code=2):
    """The command ended with `code` and one complaint on stderr that holds all the words; no traceback anywhere."""
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("error: ") == 1
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr
    return True
