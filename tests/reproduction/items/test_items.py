"""What holds of every experiment, whatever it measures."""

import inspect
import json

import pytest

from reproduction.items import ITEMS, choose
from reproduction.records import Results, load
from reproduction.runner import wanted
from reproduction.runs import FULL, QUICK, Measure
from reproduction.verdicts import NOT_RUN


@pytest.fixture(params=ITEMS, ids=lambda item: item.name)
def item(request):
    return request.param


def test_claims_have_names_of_their_own_that_begin_with_the_items_number(item):
    ids = [claim.id for each in ITEMS for claim in each.claims]
    assert len(ids) == len(set(ids))
    assert all(claim.id.startswith(f"{item.number}-") for claim in item.claims)


def test_items_are_in_the_order_of_the_reading_list():
    numbers = [int(item.number.removeprefix("P")) for item in ITEMS]
    assert numbers == sorted(numbers)


def test_claims_say_what_is_judged_and_how(item):
    for claim in item.claims:
        assert all((claim.where, claim.says, claim.rule))
        assert claim.judge(Results(), QUICK).verdict == NOT_RUN


@pytest.mark.parametrize("preset", [QUICK, FULL], ids=lambda preset: preset.name)
def test_measurements_are_functions_that_take_their_arguments(item, preset):
    for run in item.runs(preset):
        if isinstance(run, Measure):
            inspect.signature(run.function).bind(**run.arguments)
            assert json.loads(json.dumps(dict(run.arguments))) == dict(run.arguments)


@pytest.mark.parametrize("preset", [QUICK, FULL], ids=lambda preset: preset.name)
def test_no_recorded_run_is_unknown(preset, request):
    results = load(request.config.rootpath / "reports", preset.name)
    known = {run.key: run for item in ITEMS for run in wanted(item, preset, results)}
    assert results.records
    assert set(results.records) <= set(known)
    for key, record in results.records.items():
        if "measure" in record:
            assert record["measure"] == known[key].recorded_name
            assert record["label"] == known[key].label


def test_without_records_there_is_nothing_of_ours_to_see(item):
    for figure in item.figures(Results(), QUICK):
        assert {point["source"] for point in figure.points} <= {"paper"}
    for table in item.tables(Results(), QUICK):
        assert all(len(row) == len(table.headers) for row in table.rows)


def test_an_unknown_item_is_refused_by_name():
    assert [item.name for item in choose(["theory", "theory"])] == ["theory"]
    with pytest.raises(ValueError, match="'theorem'"):
        choose(["theorem"])
