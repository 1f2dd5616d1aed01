"""The page as text: complete, valid, escaped, with one copy of the scripts and nothing from outside."""

import pytest

from reproduction.report import page
from reproduction.report.gather import gather
from reproduction.verdicts import VERDICTS
from tests.reading import read
from tests.reproduction.report import fabricated
from varla.report.page import render


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return render(page.make(gather(fabricated.ITEMS, fabricated.write(tmp_path_factory.mktemp("reports")))))


def test_elements_are_closed_ids_are_unique_links_lead_somewhere_and_nothing_is_loaded(text):
    found = read(text)
    assert {"P7-vla-24", "P12-unit", "item-recall", "machines"} <= set(found.ids)
    assert found.loaded == ["data:,"]
    assert "default-src 'none'" in text
    assert text.count("window.vegaEmbed=") == 1


def test_the_headline_counts_the_verdicts_and_comes_first(text):
    says = (
        "Of the paper&#39;s 8 claims, 3 are reproduced, 1 only under conditions it does not state, "
        "1 is not reproduced, 1 is false, and 2 have not been run."
    )
    assert f"<h1>{says}</h1>" in text
    assert (
        text.index("<h1>") < text.index('class="group"') < text.index('id="item-recall"') < text.index("claims-table")
    )


def test_every_claim_has_a_tile_with_its_symbol_and_words(text):
    tiles = text.split('id="verdicts"')[1].split("</section>")[0]
    assert tiles.count("<li>") == len([claim for item in fabricated.ITEMS for claim in item.claims])
    tile = tiles.split('href="#P12-unit"')[1].split("</a>")[0]
    assert '<span aria-hidden="true">≠</span>' in tile
    assert "P12-unit, false: the Jacobian has norm 1" in tile
    assert "P12-unit: false\nthe Jacobian has norm 1\npaper 1, ours 1.75" in tile


def test_text_of_items_is_escaped_and_code_is_marked(text):
    assert "&amp; &lt;nothing&gt; else" in text
    assert "<code>gain=&#34;paper&#34;</code>" in text
    assert "loss is &lt;nan&gt; at step 3" in text


def test_every_claim_says_where_what_and_by_which_rule_beside_its_verdict(text):
    entry = text.split('<article id="P7-vla-8"')[1].split("</article>")[0]
    judged, said = entry.split('class="said"')
    assert "✓" in judged
    assert "reproduced" in judged
    assert "within 0.03" in judged
    for part in (
        "Fig. 1",
        "vla recalls n = 8 pairs",
        "0.9967 (0.99 to 1)",
        "3 seeds",
        "paper <b>1</b>",
        "run recall --preset full",
    ):
        assert part in said
    row = text.split('<tr data-claim="P7-vla-8"')[1].split("</tr>")[0]
    for part in ("Fig. 1", "vla recalls n = 8 pairs", "0.9967 (0.99 to 1)", "3 seeds", "✓", "within 0.03"):
        assert part in row
    assert set(page.SYMBOLS) == set(page.MEANINGS) == set(VERDICTS)
    assert len(set(page.SYMBOLS.values())) == len(VERDICTS)


def test_what_comes_from_the_quick_preset_says_so(text):
    row = text.split('<tr data-claim="P7-softmax-8"')[1].split("</tr>")[0]
    assert '<span class="tag">quick</span>' in row
    assert "quick preset" in text.split('<article id="P7-softmax-8"')[1].split("</article>")[0]


def test_settings_machines_and_trouble_are_listed(text):
    for part in (
        "Imaginary 9000",
        "0123456789",
        "1 run of preset <code>quick</code> did not finish",
        "settings: 1 run did not finish",
        "train.steps",
    ):
        assert part in text
    assert "There is no point to draw yet." in text


def test_without_records_the_page_says_so(tmp_path):
    text = render(page.make(gather([fabricated.RECALL], tmp_path)))
    assert "None of the paper&#39;s 4 claims has been run yet." in text
    assert "No run is recorded." in text
    assert "0 of 6 runs recorded" in text


def test_the_page_is_written_where_asked(tmp_path):
    path = page.write(gather([fabricated.NORMS], tmp_path), tmp_path / "deep" / "page.html")
    assert path.read_text().rstrip().endswith("</html>")
