"""The result in sentences: they follow the records, and say something else if the records do."""

from dataclasses import replace

import pytest

from reproduction.claims import Claim, Finding
from reproduction.items import ITEMS
from reproduction.report.findings import (
    CHARTS,
    HEADLINE,
    KEY_CHARTS,
    SENTENCES,
    findings,
    headline,
    key_charts,
    sentence,
)
from reproduction.report.gather import Row, count, gather
from reproduction.verdicts import FALSE, NOT_REPRODUCED, NOT_RUN, REPRODUCED, VERDICTS
from tests.reproduction.report import fabricated


def row(name, finding, paper=1.0):
    claim = Claim(name, "Fig. 1", "it is so", paper, "it is", fabricated.always(finding))
    return Row(fabricated.RECALL, claim, finding, "" if finding.verdict == NOT_RUN else "full")


@pytest.fixture(scope="module")
def real(request):
    return gather(ITEMS, request.config.rootpath / "reports")


def test_the_headline_counts_only_the_verdicts_there_are():
    rows = [row("a", Finding(REPRODUCED)), row("b", Finding(REPRODUCED)), row("c", Finding(FALSE))]
    assert headline(rows, count(rows)) == "Of the paper's 3 claims, 2 are reproduced, and 1 is false."
    assert headline(rows[:1], count(rows[:1])) == "Of the paper's 1 claim, 1 is reproduced."
    waiting = [row("a", Finding(NOT_RUN))]
    assert headline(waiting, count(waiting)) == "None of the paper's 1 claim has been run yet."


def test_a_sentence_has_the_numbers_of_the_record():
    found = row("P18-vla-deltanet", Finding(NOT_REPRODUCED, -0.25, -0.5, 0.125, 3))
    assert sentence(found).endswith("the mean difference in accuracy is -0.250, its 95% interval -0.500 to 0.125.")


@pytest.mark.parametrize("name", SENTENCES)
@pytest.mark.parametrize("verdict", [each for each in VERDICTS if each != NOT_RUN])
def test_a_verdict_without_a_sentence_is_told_plainly(name, verdict):
    text = sentence(row(name, Finding(verdict, 0.5, 0.25, 0.75, 3, "a note")))
    if verdict in SENTENCES[name]:
        assert "{" not in text
    else:
        assert text == f"The paper says: it is so. This is {verdict} (paper 1, ours 0.5 (0.25 to 0.75))."


def test_what_was_not_run_is_not_spoken_of():
    rows = [row(name, Finding(NOT_RUN)) for name in HEADLINE]
    assert findings(rows) == []
    rows[0] = replace(rows[0], finding=Finding(REPRODUCED, 1.0))
    assert [found.claim.id for found, _ in findings(rows)] == [HEADLINE[0]]


def test_the_claims_and_figures_that_are_named_exist(real):
    ids = {row.claim.id for row in real.rows}
    assert {*HEADLINE, *SENTENCES, *CHARTS.values()} <= ids
    assert [drawing.figure.name for _, drawing, _ in key_charts(real)] == list(CHARTS)
    assert all(section.item.title and drawing in section.drawings for section, drawing, _ in key_charts(real))


def test_the_records_of_the_repository_have_the_sentences_written_for_them(real):
    assert all("The paper says" not in text for _, text in findings(real.rows))


def test_other_charts_take_the_place_of_missing_ones(tmp_path):
    found = key_charts(gather(fabricated.ITEMS, fabricated.write(tmp_path)))
    assert [drawing.figure.name for _, drawing, _ in found] == ["recall", "norms", "kinds"]
    assert len(found) == KEY_CHARTS
