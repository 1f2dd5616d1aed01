"""What holds of every experiment, whatever it measures."""

import inspect
import json
from importlib import import_module

import pytest

from varla.experiments.claims import NOT_RUN
from varla.experiments.items import ITEMS, choose
from varla.experiments.records import Results
from varla.experiments.runs import FULL, QUICK, Measure


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
            module, name = run.function.split(":")
            inspect.signature(getattr(import_module(module), name)).bind(**run.arguments)
            assert json.loads(json.dumps(dict(run.arguments))) == dict(run.arguments)


def test_without_records_there_is_nothing_of_ours_to_see(item):
    for figure in item.figures(Results(), QUICK):
        assert {point["source"] for point in figure.points} <= {"paper"}
    for table in item.tables(Results(), QUICK):
        assert all(len(row) == len(table.headers) for row in table.rows)


def test_an_unknown_item_is_refused_by_name():
    assert [item.name for item in choose(["theory", "theory"])] == ["theory"]
    with pytest.raises(ValueError, match="'theorem'"):
        choose(["theorem"])
