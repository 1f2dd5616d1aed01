"""Every option of every mechanism trains through `varla train`, and its checkpoint can be resumed."""

import pytest

from tests.cli.cases import varla
from tests.training.test_loop import TINY
from varla.layers import MECHANISMS
from varla.layers.deltanet_paper import GATES
from varla.layers.norm import NORMS
from varla.layers.options import options_of
from varla.ops.directions.settings import FORGET_AT, GAINS
from varla.ops.features import FEATURE_MAPS
from varla.runs.settings import dump
from varla.training import Run, train

# Values of every option beside its default.
VALUES = {
    "beat": [3],
    "bias": [False],
    "conv": [1, 4],
    "eps": [0.1],
    "feature_map": FEATURE_MAPS,
    "forget": [True],
    "forget_at": FORGET_AT,
    "gain": GAINS,
    "gate": GATES,
    "head_dim": [4],
    "lambda0": [1.0],
    "norm_eps": [1e-3],
    "negative_eigenvalues": [True],
    "normalize_key": [False],
    "normalize_query": [True],
    "normalizer": [False],
    "output_gate": [True],
    "output_norm": NORMS,
    "penalty_scale": [0.5],
    "refresh": [0.0],
    "refresh_every": ["null", 3],
    "rotary": [100.0],
    "scale": ["null", 0.5],
    "strength_init": [1.0],
    "u_init": ["drawn"],
    "update_penalty": [False],
    "value_dim": [4],
}
CASES = [
    (name, f"layer.{option}={str(value).lower()}")
    for name, kind in MECHANISMS.items()
    for option in options_of(kind)
    for value in VALUES[option]
]
BACKBONE = ["model.positions=none", "model.initialisation=default", "model.initialisation=tied", "model.max_len=50"]


@pytest.mark.parametrize(("mechanism", "change"), [*CASES, *(("vla", change) for change in BACKBONE)])
def test_it_trains_and_its_checkpoint_is_whole(tmp_path, monkeypatch, mechanism, change):
    monkeypatch.setenv("VARLA_COMMIT", "a test")  # asking git takes longer than two steps
    few = {**TINY["train"], "steps": 2, "eval_every": 2}
    (tmp_path / "config.yaml").write_text(dump({**TINY, "mechanism": mechanism, "train": few}))
    options = ["--set", change, "--out", tmp_path / "run", "--device", "cpu", "--quiet"]
    result = varla("train", tmp_path / "config.yaml", *options)
    assert result.exit_code == 0, result.output
    run = Run(tmp_path / "run")
    assert [entry["step"] for entry in run.metrics()] == [1, 2]
    assert train(run.config(), run.folder, resume=True, device="cpu")["final"] == run.record()["final"]
