"""info, mechanisms, models, tasks: what is there is all listed."""

import sys

import torch

import varla as package
from tests.cli.cases import refused, varla
from varla import models, tasks
from varla.layers import MECHANISMS, build
from varla.ops.backends import Backend


def test_info_shows_versions_devices_and_backends():
    result = varla("info")
    assert result.exit_code == 0
    for word in (package.__version__, torch.__version__, "python", "gpu", *package.backends()):
        assert word in result.stdout


def test_info_says_why_a_backend_is_missing(monkeypatch):
    missing = {"kernel": Backend("kernel", "a kernel", False, "there is no GPU here")}
    monkeypatch.setattr(package, "backends", lambda: missing)
    assert "there is no GPU here" in varla("info").stdout


def test_mechanisms_lists_all_with_options_and_state():
    result = varla("mechanisms")
    assert result.exit_code == 0
    for name, kind in MECHANISMS.items():
        assert name in result.stdout
        assert kind.summary in result.stdout
        assert f"{build(name, d_model=128, n_heads=4).state_size(1000):,}" in result.stdout
    assert "lambda0=0.1" in result.stdout
    assert "output_norm=none" in result.stdout.split("Options of all")[1]


def test_models_lists_the_presets_with_parameters_and_states():
    result = varla("models", "--context", 1000)
    assert result.exit_code == 0
    for name in models.PRESETS:
        line = next(line for line in result.stdout.splitlines() if f" {name} " in line)
        with torch.device("meta"):
            net = models.VarlaForCausalLM(models.preset(name))
            softmax = models.VarlaModel(models.preset(name, mechanisms="softmax"))
        for number in (net.num_parameters(), net.model.state_size(1000), softmax.state_size(1000)):
            assert f" {number:,} " in line
    assert "after 1,000 tokens" in result.stdout


def test_models_refuses_what_it_does_not_know():
    assert refused(varla("models", "--mechanism", "vlaa"), "unknown mechanism 'vlaa'; did you mean 'vla'")
    assert refused(varla("models", "--context", 0), "--context must be at least 1")


def test_models_without_transformers_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("varla.models")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert refused(varla("models"), 'pip install "varla[hf]"')


def test_tasks_lists_all_with_settings_and_chance():
    result = varla("tasks")
    assert result.exit_code == 0
    for name in tasks.names():
        task = tasks.make(name)
        line = next(line for line in result.stdout.splitlines() if f" {name} " in line)
        assert f"seq_len={task.seq_len}, vocab_size={task.vocab_size}" in line
        assert f"{task.chance:.4f}" in line
        assert f"{task.best:.4f}" in line


def test_tasks_show_describes_and_draws():
    result = varla("tasks", "show", "mqar", "--n", 3, "--seq-len", 12, "--vocab-size", 16, "--seed", 5)
    assert result.exit_code == 0
    task = tasks.make("mqar", n=3, seq_len=12, vocab_size=16)
    assert " ".join(result.stdout.split()).startswith(task.describe())
    assert task.example(torch.Generator().manual_seed(5)) in result.stdout


def test_tasks_show_takes_every_setting_of_a_task():
    shown = varla("tasks", "show", "noisy-recall", "--n", 2, "--set", "fillers=4", "--set", "seq_len=12").stdout
    assert tasks.make("noisy-recall", n=2, fillers=4, seq_len=12).example(torch.Generator().manual_seed(0)) in shown
    assert "keys=ood" in varla("tasks", "show", "mqar-ood", "--set", "keys=ood").stdout
    assert "power=0.001" in varla("tasks", "show", "mqar-zoology", "--set", "power=1e-3").stdout
    assert "seq_len=64" in varla("tasks", "show", "copy", "--set", "seq_len=null").stdout


def test_tasks_show_refuses_settings_as_train_does():
    assert refused(varla("tasks", "show", "mqar-zoology", "--set", "powre=1"), "did you mean 'power'")
    assert refused(varla("tasks", "show", "mqar", "--set", "power=1"), "unknown setting 'power'")
    assert refused(varla("tasks", "show", "noisy-recall", "--set", "fillers=many"), "fillers must be an integer")
    assert refused(varla("tasks", "show", "mqar", "--set", "n"), "--set takes key=value, got 'n'")
    assert refused(varla("tasks", "show", "mqar", "--n", 3, "--set", "n=4"), "n is given already, as 3")
    assert refused(varla("tasks", "show", "mqar", "--set", "name=copy"), "name is given already, as 'mqar'")


def test_tasks_show_refuses_what_it_does_not_know():
    assert refused(varla("tasks", "show", "mqra"), "mqra", "did you mean 'mqar'")
    assert refused(varla("tasks", "show", "copy", "--n", 3), "unknown setting 'n'")
    assert refused(varla("tasks", "show", "mqar", "--n", 0), "n must be at least 1")


def test_a_seed_that_pytorch_cannot_hold_is_refused():
    assert refused(varla("tasks", "show", "mqar", "--seed", 2**70), "--seed must be below 2**63")
