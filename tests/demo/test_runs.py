"""The demo runs end to end, shows its table, picture and page, and does not train twice."""

import pytest
from typer.testing import CliRunner

from varla import demo
from varla.cli.main import app
from varla.demo import over_positions, sentence
from varla.training import Run


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo")
    return out, CliRunner().invoke(app, ["demo", "--steps", "2", "--out", str(out)])


def test_it_ends_with_a_table_a_picture_and_two_pages(shown):
    out, result = shown
    assert result.exit_code == 0, result.output
    for name in demo.MECHANISMS:
        assert name in result.output
    assert "This run did not come out as expected" in " ".join(result.output.split())  # after two steps
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    page = (out / "index.html").read_text()
    assert "vegaEmbed" in page
    assert "<script src=" not in page
    assert all(f"<td>{name}</td>" in page for name in demo.MECHANISMS)
    assert f'<a href="{demo.WATCH}">' in page
    watch = (out / demo.WATCH).read_text()
    assert "vla" in watch
    assert "linear" in watch
    assert demo.WATCH in result.output


def test_the_protocol_is_the_papers_but_for_the_learning_rate(shown):
    out, _ = shown
    configs = {name: Run(out / "runs" / name).config() for name in demo.MECHANISMS}
    for config in configs.values():
        assert (config.preset, config.task["name"], config.task["n"], config.seed) == ("paper", "mqar", 8, 42)
        assert config.train.lr == 1e-3


def test_readings_cover_every_position(shown):
    out, _ = shown
    result = demo.collect(out / "runs" / "vla")
    assert {"|S|", "|A|", "k.a"} == set(result.readings)
    assert all(len(values) == 25 for values in result.readings.values())
    assert over_positions([result], "|A|", "A") is not None
    assert over_positions([result], "nothing", "") is None


def test_the_sentence_says_what_is_seen(shown):
    out, _ = shown
    results = [demo.collect(out / "runs" / name) for name in demo.MECHANISMS]
    for result, accuracy in zip(results, (1.0, 0.2, 0.14, 0.14), strict=True):
        result.record["final"]["eval"] = accuracy
    assert "not for lack of capacity" in sentence(results)
    results[0].record["final"]["eval"] = 0.5
    assert "did not come out as expected" in sentence(results)
    assert "vla 0.500" in sentence(results)


def test_finished_runs_are_not_trained_again(shown):
    out, _ = shown
    before = Run(out / "runs" / "vla").record_file.stat().st_mtime_ns
    again = CliRunner().invoke(app, ["demo", "--steps", "2", "--out", str(out)])
    assert again.exit_code == 0, again.output
    assert Run(out / "runs" / "vla").record_file.stat().st_mtime_ns == before


def test_other_settings_in_the_same_folder_are_refused(shown):
    out, _ = shown
    result = CliRunner().invoke(app, ["demo", "--steps", "3", "--out", str(out)])
    assert result.exit_code == 2
    assert "other settings" in result.output
