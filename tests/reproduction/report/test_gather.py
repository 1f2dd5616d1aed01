"""The report's content: full before quick, nothing hidden, and errors that name what is wrong."""

import json
from dataclasses import replace

import pytest

from reproduction.report.gather import anchor, gather, recorded, settings
from tests.reproduction.report import fabricated


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return gather(fabricated.ITEMS, fabricated.write(tmp_path_factory.mktemp("reports")))


def test_every_claim_has_its_verdict(report):
    assert report.counts == fabricated.VERDICT_COUNTS
    assert [row.claim.id for row in report.rows] == [c.id for item in fabricated.ITEMS for c in item.claims]


def test_the_full_preset_is_shown_and_the_quick_one_where_there_is_no_other(report):
    shown = {row.claim.id: (row.preset, row.finding.verdict) for row in report.rows}
    assert shown["P7-vla-8"] == ("full", "reproduced")
    assert shown["P7-softmax-8"] == ("quick", "not reproduced")
    assert shown["P7-vla-24"] == ("", "not run")
    commands = {row.claim.id: row.command for row in report.rows}
    assert commands["P7-softmax-8"] == "python -m reproduction run recall --preset quick"
    assert commands["P7-vla-24"] == "python -m reproduction run recall --preset full"


def test_figures_come_from_the_preset_that_has_points_of_ours(report, tmp_path):
    assert [drawing.preset for drawing in report.sections[0].drawings] == ["full"]
    only_quick = fabricated.write(tmp_path)
    for path in (only_quick / "full").iterdir():
        path.unlink()
    kept = gather([fabricated.RECALL], only_quick).sections[0]
    assert kept.drawings[0].preset == "full"  # neither has a point of ours: softmax is not in the figure
    run = fabricated.train(fabricated.QUICK, "vla", 8, 42)
    path = only_quick / "quick" / "recall.json"
    content = json.loads(path.read_text())
    content["runs"].append({**fabricated.trained(run, 0.9), "environment": 0})
    path.write_text(json.dumps(content))
    assert gather([fabricated.RECALL], only_quick).sections[0].drawings[0].preset == "quick"


def test_runs_seconds_and_trouble_are_counted(report):
    full, quick = report.sections[0].work
    assert (full.preset, full.wanted, len(full.recorded), full.seconds) == ("full", 6, 6, 360.0)
    assert [record["message"] for record in quick.troubled] == ["loss is <nan> at step 3"]
    assert (report.runs, report.seconds) == (8, 421.0)


def test_machines_are_told_apart_by_what_they_are_not_by_commits(report):
    (machine,) = report.machines
    assert machine.facts["processor"] == "Imaginary 9000"
    assert machine.commits == ("0123456789",)
    assert "gpus" not in machine.facts


def test_settings_are_listed_with_the_values_they_took(report):
    found = dict(report.sections[0].settings)
    assert found["mechanism"] == "vla, linear, softmax"
    assert found["train.steps"] == "100, 10"
    assert found["seed"] == "42, 123, 999"  # 42 is the default, which records leave out
    assert dict(report.sections[1].settings) == {"measurement": "fabricated:norm", "length": "1000"}
    many = [{"measure": "a:b", "arguments": {"n": n}} for n in range(20)]
    assert dict(settings(many))["n"].endswith("11 and 8 more")


def test_without_records_every_claim_that_needs_them_is_not_run(tmp_path):
    assert not recorded(tmp_path)
    report = gather(fabricated.ITEMS, tmp_path)
    assert report.counts["not run"] == 5
    assert report.machines == ()
    assert recorded(fabricated.write(tmp_path))


def test_a_damaged_file_is_named(tmp_path):
    fabricated.write(tmp_path)
    (tmp_path / "full" / "norms.json").write_text('{"runs": [')
    with pytest.raises(ValueError, match=r"norms\.json is damaged"):
        gather(fabricated.ITEMS, tmp_path)


def test_two_claims_or_figures_of_one_name_are_an_error(tmp_path):
    again = replace(fabricated.NORMS, name="again")
    with pytest.raises(ValueError, match="two claims have the id P12-bounded"):
        gather([fabricated.NORMS, again], tmp_path)
    with pytest.raises(ValueError, match="two figures have the name norms"):
        gather([fabricated.NORMS, replace(again, claims=())], tmp_path)


def test_anchors_hold_nothing_that_an_address_cannot():
    assert anchor("P7-vla-24") == "P7-vla-24"
    assert anchor("P7 |S| = 2") == "P7-S-2"
