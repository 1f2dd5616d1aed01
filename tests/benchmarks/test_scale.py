"""The calculated plan: docs/scale.md shows what the script computes, and its parts grow as they should."""

from dataclasses import replace

import pytest

from benchmarks import scale
from benchmarks.scale import PLANS, cost, main, page


def test_the_page_shows_what_is_calculated():
    assert page() == scale.DOCS.read_text()


def test_its_parts_grow_with_what_they_depend_on():
    plan = replace(PLANS[1], changes={"num_hidden_layers": 2})
    base = cost(plan)
    longer = cost(replace(plan, tokens=2 * plan.tokens))
    assert longer.ranks == base.ranks  # what ranks exchange does not depend on the length
    assert longer.shards == base.shards
    assert longer.products == pytest.approx(2 * base.products)
    assert longer.kept == pytest.approx(2 * base.kept)
    wider = cost(replace(plan, context=2 * plan.context, tokens=2 * plan.tokens))
    assert wider.ranks == pytest.approx(base.ranks * 31 / 15)
    assert wider.operators == pytest.approx(base.operators)
    alone = cost(replace(plan, context=1, shard=1, tokens=plan.tokens // 16))
    assert (alone.ranks, alone.shards, alone.pieces) == (0, 0, 0)
    assert alone.state == 16 * alone.parameters


def test_unknown_words_are_refused(capsys):
    assert main(["drwa"]) == 2
    assert capsys.readouterr().err == "error: drwa is not known: give draw, or nothing\n"
