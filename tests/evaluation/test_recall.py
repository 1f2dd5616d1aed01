"""The evaluation of recall: the same treatment for all, equal bytes of state, and a table of what is recorded."""

import inspect
import re

import pytest

from evaluation import recall
from reproduction.records import Results, load
from reproduction.runs import FULL, QUICK
from tests.warm import warm  # noqa: F401 - a fixture
from varla.layers import build
from varla.layers.gated_vla import GatedVLA

PRESETS = pytest.mark.parametrize("preset", [QUICK, FULL], ids=lambda preset: preset.name)


@PRESETS
def test_every_mechanism_gets_the_same_treatment(preset):
    made = recall.runs(preset)
    assert len({run.key for run in made}) == len(made)
    for name in recall.CONTENDERS:
        own = recall.run(name, 16, 1e-3, 42, preset).config
        other = recall.run("softmax", 16, 1e-3, 42, preset).config
        assert (own.preset, own.task, own.train, own.seed) == (other.preset, other.task, other.train, other.seed)
        assert own.layer["head_dim"] == recall.SCALES[preset.name].head_dim


def test_gated_vla_is_the_layer_as_it_is_by_default():
    defaults = {name: each.default for name, each in inspect.signature(GatedVLA).parameters.items()}
    assert {name: defaults[name] for name in recall.GATED} == {**recall.GATED, "forget": None}
    assert build("gated-vla", d_model=8, n_heads=2).settings.forget_at == "beat"


@PRESETS
def test_wide_values_make_as_many_bytes_of_state_as_A(preset):
    def state_bytes(name):
        config = recall.run(name, 16, 1e-3, 42, preset).config
        return build(config.mechanism, d_model=128, n_heads=4, **config.layer).state_size(64)

    ours = state_bytes("gated-vla")
    for name in ("deltanet, wide", "gated-deltanet, wide"):
        assert state_bytes(name) == pytest.approx(ours, rel=0.07)  # Gated VLA's state also has a z, which is not used
        assert state_bytes(name) == pytest.approx(2 * state_bytes(name.removesuffix(", wide")), rel=0.01)


def test_the_table_shows_what_is_recorded():
    scale = recall.SCALES["full"]
    results = Results()
    for seed, accuracy in zip(FULL.seeds, (0.9, 0.99, 0.95), strict=True):
        run = recall.run("gated-vla", 128, 1e-3, seed, FULL)
        results.records[run.key] = {"status": "finished", "final": {"eval": accuracy}, "state bytes": 1234}
    columns, rows = recall.headers(FULL), recall.rows(results, FULL)
    assert [row[0] for row in rows] == list(recall.CONTENDERS)
    assert {len(row) for row in rows} == {len(columns)} == {2 + len(scale.pairs) * len(scale.rates)}
    row = dict(zip(columns, next(row for row in rows if row[0] == "gated-vla"), strict=True))
    assert row["n = 128, rate 0.001"] == "0.900 to 0.990 (3)"
    assert row["n = 64, rate 0.001"] == "-"


def test_the_page_leaves_out_what_was_not_run():
    results = Results()
    for name, accuracy in (("softmax", 1.0), ("gated-vla", 0.9)):
        run = recall.run(name, 128, 3e-3, 42, FULL)
        results.records[run.key] = {"status": "finished", "final": {"eval": accuracy}, "state bytes": 12}
    table = recall.page(results, FULL).split("<!-- evaluation/results/full: ")[1].split("<!-- end -->")[0]
    lines = table.splitlines()[1:]
    assert [lines[0], *lines[2:]] == [
        "| mechanism | state bytes | n = 128, rate 0.003 |", "| softmax | 12 | 1.000 |", "| gated-vla | 12 | 0.900 |"
    ]  # fmt: skip


def test_the_docs_have_the_table_of_the_recorded_runs():
    assert recall.page(load(recall.RECORDS, "full"), FULL) == recall.DOCS.read_text()


def test_a_run_is_recorded_and_not_made_again(tmp_path, monkeypatch, capsys, warm):  # noqa: F811
    monkeypatch.setattr(recall, "SCALES", {"quick": recall.Scale((2,), 4, (1e-3,), 2, 2, "fp32")})
    monkeypatch.setattr(recall, "CONTENDERS", {name: recall.CONTENDERS[name] for name in ("gated-vla", "softmax")})
    given = ["--records", str(tmp_path / "records"), "--runs", str(tmp_path / "runs"), "--jobs", "1"]
    assert recall.main(["run", *given]) == 0
    assert "2 made now, 0 left" in capsys.readouterr().out
    assert recall.main(["run", *given]) == 0
    assert "2 runs already recorded, 0 made now, 0 left" in capsys.readouterr().out
    assert recall.main(given) == 0
    assert "gated-vla" in capsys.readouterr().out


def test_the_figure_shows_every_recorded_run_of_its_contenders():
    found = recall.points(load(recall.RECORDS, "full"), FULL)
    assert {point["mechanism"] for point in found} == set(recall.DRAWN)
    drawn = recall.FIGURE.read_text()
    for point in found:
        accuracy = f"accuracy with {point['pairs']} pairs, a dot for each run: {point['accuracy']:.12g}; "
        assert re.search(rf"{re.escape(accuracy)}run: [\d.]+; mechanism: {point['mechanism']}\"", drawn)
    assert drawn.count("; mechanism: ") == len(found) + len(recall.DRAWN)  # and a name for each contender
    for name, size in {point["mechanism"]: point["bytes"] for point in found}.items():
        assert f"text: {name} {recall.size(size)} of state" in drawn


def test_dots_of_the_figure_stay_in_the_row_of_their_contender():
    found = recall.points(load(recall.RECORDS, "full"), FULL)
    dots = recall.figure(found).layer[0].data.values
    places = [(recall.DRAWN.index(dot["mechanism"]), dot["run"]) for dot in dots]
    assert all(row < place < row + 1 for row, place in places)
    assert len(set(places)) == len(found)
