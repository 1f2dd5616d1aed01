"""The standard of pages as text: valid, escaped, nothing from outside, with the scripts of charts once if at all."""

import pytest
from markupsafe import Markup

from tests.reading import read
from varla.report.curves import learning_curves, lines
from varla.report.embed import embedded, script
from varla.report.page import Chart, Fold, Grid, Page, Section, facts, prose, render, script_json, write

RUNS = {name: [{"step": step, "eval": step / 10} for step in (1, 5, 10)] for name in ("vla", "linear")}
NUMBERS = Grid("Accuracy by run", ("run", "accuracy"), [("vla", "1.0"), ("a<b", "0.5")], ("accuracy",), "of `two` runs")
CHART = Chart("curves", "Accuracy & steps", embedded(learning_curves(RUNS, chance=0.1)), "dotted: chance", NUMBERS)


def sample(**others):
    sections = [
        Section("Curves", ["Text with `code` & <more>.", CHART], "curves-section"),
        Section("Table", [NUMBERS, Markup('<p id="raw">kept <b>as it is</b></p>')], "table", "Short"),
        Section("More", [Fold("On demand", ["inside", Fold("Deeper", [NUMBERS])])], "more"),
    ]
    return Page("A page", "VLA is right; `linear` is not.", sections, **others)


def test_a_page_is_valid_and_loads_nothing():
    found = read(render(sample(facts={"torch": "2.13"})))
    assert found.loaded == ["data:,"]
    assert {"curves", "curves-section", "table", "more", "raw", "content"} <= set(found.ids)
    assert [link for link in found.links if link != "#content"] == ["#curves-section", "#table", "#more"]


def test_the_headline_comes_first_and_text_is_escaped():
    text = render(sample(lead=["Then <this>."], facts={"machine": "A&B"}, footer="The `end`."))
    assert "<h1>VLA is right; <code>linear</code> is not.</h1>" in text
    assert text.index("<h1>") < text.index("Then &lt;this&gt;.") < text.index("<h2")
    for part in (
        "<code>code</code> &amp; &lt;more&gt;",
        "a&lt;b",
        "<b>as it is</b>",
        "A&amp;B",
        "The <code>end</code>.",
    ):
        assert part in text


def test_vega_is_there_once_and_only_for_charts():
    text = render(sample())
    assert text.count("window.vegaEmbed=") == 1
    bare = render(Page("A page", "No charts.", [Section("Table", [NUMBERS], "table")]))
    assert "vegaEmbed=" not in bare
    assert "unsafe-eval" not in bare
    assert len(bare) < 30_000
    read(bare)


def test_charts_inside_folds_are_drawn_too():
    folded = Page("A page", "One chart.", [Section("Charts", [Fold("One", [Fold("Two", [CHART])])], "charts")])
    assert '"curves":{' in render(folded)


def test_contents_are_for_pages_with_several_sections():
    assert 'aria-label="Contents"' in render(sample())
    assert 'aria-label="Contents"' not in render(Page("A page", "One.", [Section("Table", [NUMBERS], "table")]))


def test_a_chart_is_as_wide_as_its_place_and_takes_the_colours_of_its_page():
    spec = CHART.spec
    assert spec["width"] == "container"
    assert spec["config"]["axis"]["labelColor"] == spec["config"]["legend"]["labelColor"] == "var(--text)"
    assert spec["config"]["background"] == "transparent"


def test_an_absent_series_is_not_in_the_legend_and_the_others_keep_their_look():
    points = [{"run": "linear", "token": 1, "value": 2.0}]
    some = lines(points, ["vla", "linear"], "token", "|S|").to_dict()["encoding"]
    every = lines([*points, {"run": "vla", "token": 1, "value": 1.0}], ["vla", "linear"], "token", "|S|").to_dict()
    for channel in ("color", "shape"):
        scale = every["encoding"][channel]["scale"]
        assert some[channel]["scale"] == {"domain": scale["domain"][1:], "range": scale["range"][1:]}


def test_facts_are_short_and_leave_out_what_is_unknown():
    found = facts({"processor": "X", "gpus": [], "commit": "0123456789abcdef-dirty", "torch": "2.13", "date": "today"})
    assert found == {"processor": "X", "torch": "2.13", "commit": "0123456789-dirty"}
    assert facts({"gpus": ["H200", "H200"], "commit": None}) == {"gpus": "H200, H200"}


def test_the_script_and_json_do_not_end_the_element_they_stand_in():
    assert "vegaEmbed" in script()
    assert "</script" not in script()
    assert "<" not in script_json({"a": "</script><!--"})


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("a `b<c` d", "a <code>b&lt;c</code> d"),
        ("a ` b", "a ` b"),
        ("x & y", "x &amp; y"),
        ("", ""),
        (Markup("<i>`x`</i>"), "<i>`x`</i>"),
    ],
)
def test_prose(given, shown):
    assert prose(given) == shown


def test_a_page_is_written_where_asked(tmp_path):
    assert write(sample(), tmp_path / "deep" / "page.html").read_text().rstrip().endswith("</html>")
