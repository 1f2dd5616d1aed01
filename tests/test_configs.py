"""The lab's files in configs/: each runs as it stands, with the numbers of the paper's protocol it is named for."""

import re
from pathlib import Path

import pytest

from varla.training import RunConfig, build_model, build_task, from_dict, load, override

FOLDER = Path(__file__).parent.parent / "configs"
LANGUAGE = {"tiny"}  # tests/benchmarks/lm/test_tiny.py
NAMES = sorted({path.stem for path in FOLDER.iterdir()} - LANGUAGE)
# task, n, T, steps, batch size
PROTOCOLS = {
    "mqar": ("mqar", 24, 73, 3000, 64),
    "copy": ("copy", None, 64, 1500, 32),
    "copy-identity": ("copy-identity", None, 63, 1500, 32),
    "long-context": ("mqar", 8, 256, 3000, 64),
    "overload": ("mqar", 32, 97, 1000, 64),
    "ood": ("mqar-ood", 16, 49, 1000, 64),
    "ablation": ("mqar", 16, 49, 1000, 64),
}


def values(name):
    return load(FOLDER / f"{name}.yaml")


def test_every_file_has_a_protocol_here():
    assert set(NAMES) == set(PROTOCOLS)


@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_a_run_of_its_protocol(name):
    config = from_dict(values(name))
    task = build_task(config)
    found = (task.name, getattr(task, "n", None), task.seq_len, config.train.steps, config.train.batch_size)
    assert found == PROTOCOLS[name]
    assert (config.mechanism, config.preset, config.seed, task.vocab_size) == ("vla", "paper", 42, 128)
    assert (config.train.lr, config.train.precision) == (3e-4, "fp32")
    assert (config.train.eval_batches, config.train.eval_batch_size) == (15, 64)
    net = build_model(config).config
    assert (net.n_layers, net.d_model, net.n_heads, net.ffn, net.vocab_size) == (2, 128, 4, 256, 128)


def test_what_mqar_writes_out_are_the_defaults():
    written, default = from_dict(values("mqar")), RunConfig()
    assert written.train == default.train
    assert build_model(written).config.layer == {"output_norm": "layer"}


def test_the_ablation_keeps_a_fixed_at_ten():
    mixer = build_model(from_dict(values("ablation"))).blocks[0].mixer
    assert (mixer.options["lambda0"], mixer.options["update_penalty"]) == (0.1, False)


@pytest.mark.parametrize("name", NAMES)
def test_what_the_comments_propose_works(name):
    """The values after `n: 8   # 4, 8, 12`, and every line with --set, for the file that it names or this one."""
    text = (FOLDER / f"{name}.yaml").read_text()
    lists = re.findall(r"^  (n|seq_len): .*# ([\d, ]+)(?:;|$)", text, flags=re.MULTILINE)
    proposed = [(name, [f"task.{key}={value.strip()}"]) for key, found in lists for value in found.split(",")]
    for line in text.splitlines():
        if changes := re.findall(r"--set ([\w.]+=[\w-]+)", line):
            (other,) = re.findall(r"configs/([\w-]+)\.yaml", line) or [name]
            proposed.append((other, changes))
    assert proposed
    for file, changes in proposed:
        build_model(from_dict(override(values(file), changes)))
