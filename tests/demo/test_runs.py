"""The demo runs end to end: a table, sentences, curves, a picture and two pages. Nothing is trained twice."""

import inspect

import pytest
import torch
from typer.testing import CliRunner

from varla import demo
from varla.cli.demo import demo as command
from varla.cli.main import app
from varla.demo import runs
from varla.training import Run, build_model, build_task


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "SEEDS", 1)
        yield out, CliRunner().invoke(app, ["demo", "--steps", "2", "--out", str(out)])


def folders(out):
    return sorted(path for path in (out / "runs").iterdir() if not path.name.startswith("."))


def test_it_ends_with_a_table_curves_sentences_and_two_pages(shown):
    out, result = shown
    assert result.exit_code == 0, result.output
    for contender in demo.CONTENDERS:
        assert contender.name in result.output
    said = " ".join(result.output.split())
    assert "no mechanism recalls yet" in said  # after two steps
    assert "accuracy (eval)" in said  # curves as text
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "index.html").read_text()
    assert "no mechanism recalls yet" in page
    assert f'<a href="{demo.WATCH}">' in page
    watch = (out / demo.WATCH).read_text()
    assert all(name in watch for name in demo.WATCHED)


def test_all_contenders_have_the_same_settings_but_for_the_mechanism_and_the_wide_values(shown):
    out, _ = shown
    configs = [Run(folder).config() for folder in folders(out)]
    assert sorted(config.mechanism for config in configs) == sorted(each.mechanism for each in demo.CONTENDERS)
    assert {config.preset for config in configs} == {"tuned"}
    for name in ("seed", "task", "model", "train"):
        assert all(getattr(config, name) == getattr(configs[0], name) for config in configs)
    layers = [dict(config.layer) for config in configs]
    assert [layer.pop("value_dim", None) for layer in layers].count(2 * runs.HEAD_DIM) == 1
    assert all(layer == {"head_dim": runs.HEAD_DIM} for layer in layers)


def test_the_wide_values_take_about_the_bytes_of_a():
    sizes = {}
    for contender in demo.CONTENDERS:
        (job,) = runs.sweep.expand(runs.base(1), contender.grid, runs.Path("runs"))
        sizes[contender.name] = build_model(job.config).state_size(100)
    assert 0.9 < sizes["gated-deltanet, wide"] / sizes["gated-vla"] <= 1


def test_sizes_are_those_of_real_states(shown):
    out, _ = shown
    tokens = torch.zeros(1, 128, dtype=torch.int64)
    for folder in folders(out):
        result = runs.collect("any", [folder])
        _, state = build_model(Run(folder).config())(tokens)
        real = sum(tensor.nbytes for layer in state.layers for tensor in layer.tensors().values()) + state.t.nbytes
        assert result.sizes[128] == real, folder


def test_the_example_is_the_first_sequence_of_a_fixed_generator(shown):
    out, _ = shown
    found = [runs.collect("any", [folder]) for folder in folders(out)]
    assert all(each.example == found[0].example for each in found)
    task = build_task(Run(folders(out)[0]).config())
    tokens, labels = task.batch(1, torch.Generator().manual_seed(demo.EXAMPLE))
    words, values = task.words(tokens[0].tolist(), labels[0].tolist())
    example = found[0].example
    assert [word for pair in example.pairs for word in pair] == words[: 2 * demo.PAIRS]
    assert sorted(example.queries) == sorted(example.pairs)
    assert [value for _, value in example.queries] == [value for value in values if value is not None]
    assert all(len(each.answers) == demo.PAIRS for each in found)


def test_finished_runs_are_not_trained_again(shown):
    out, _ = shown
    before = [Run(folder).record_file.stat().st_mtime_ns for folder in folders(out)]
    again = CliRunner().invoke(app, ["demo", "--steps", "2", "--out", str(out)])
    assert again.exit_code == 0, again.output
    assert [Run(folder).record_file.stat().st_mtime_ns for folder in folders(out)] == before


def test_other_settings_in_the_same_folder_are_refused(shown):
    out, _ = shown
    result = CliRunner().invoke(app, ["demo", "--steps", "3", "--out", str(out)])
    assert result.exit_code == 2
    assert "other settings" in result.output


def test_the_commands_default_is_the_demos():
    assert inspect.signature(command).parameters["steps"].default == demo.STEPS
