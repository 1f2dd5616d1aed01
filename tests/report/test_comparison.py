"""The page of `varla compare`: a headline that follows from the curves, what qualifies it, and tables."""

# ruff: noqa: F811 - fixtures are imported, and then named by arguments
import pytest

from tests.browser import needs_chromium, open_page, visit, window  # noqa: F401 - fixtures
from tests.reading import read
from varla.report.comparison import Compared, headline, lead, make
from varla.report.page import render, write
from varla.report.series import series

ENDS = {"vla": 0.9, "linear": 0.25, "softmax": 0.5}
METRICS = {
    name: [{"step": step, "eval": end * step / 100, "loss": 2 - end} for step in (1, 50, 100)]
    for name, end in ENDS.items()
}
RUNS = [
    Compared(
        name,
        {"mechanism": name, "state bytes": f"{i},000", "status": "finished"},
        {"mechanism": name, "train": {"steps": 100, "lr": 0.1 * (i + 1)}},
        [{"processor": "Imaginary 9000", "torch": "2.13", "commit": "0123456789abcdef"}],
    )
    for i, name in enumerate(ENDS)
]
FOUND = series(METRICS, "eval")


def page(**changes):
    given = {"runs": RUNS, "metrics": METRICS, "found": FOUND, "metric": "eval", "chance": 0.125, **changes}
    return make(**given)


def test_the_page_speaks_of_a_rule_only_where_the_chart_has_one():
    far = {
        "metrics": {"vla": [{"step": 1, "eval": 0.9}, {"step": 2, "eval": 0.91}]},
        "found": {"vla": [(1, 0.9), (2, 0.91)]},
    }
    for made, about, rules in (
        (page(), "grey rule: chance, 0.125", 1),
        (page(chance=None), "", 0),
        (page(**far, runs=RUNS[:1], chance=0.01), "chance, 0.01, is outside the chart", 0),
    ):
        chart = made.sections[0].parts[0]
        assert chart.about == about
        assert str(chart.spec).count("'type': 'rule'") == rules


@pytest.mark.parametrize(
    ("ends", "metric", "says"),
    [
        ({"a": 0.5, "b": 0.75}, "eval", "b is best at the end: accuracy 0.75, 0.25 above a."),
        ({"a": 0.5, "b": 0.75}, "eval/long", "b is best at the end: accuracy (long) 0.75, 0.25 above a."),
        ({"a": 0.5, "b": 0.75}, "loss", "a is best at the end: loss 0.5, 0.25 below b."),
        ({"a": 50.0, "b": 75.0}, "tokens/s", "b is highest at the end: tokens/s 75, 25 above a."),
        ({"a": 0.5}, "loss", "a ends with loss 0.5."),
        ({"a": 0.5, "b": 0.5, "c": 0.1}, "eval", "a and b end with the same accuracy: 0.5."),
    ],
)
def test_the_headline_names_the_best_at_the_end(ends, metric, says):
    assert headline({name: [(1, 1.0), (2, end)] for name, end in ends.items()}, metric) == says


def test_the_lead_qualifies_it():
    (text,) = lead(RUNS, {**FOUND, "linear": FOUND["linear"][:2]}, "eval", 0.125)
    for part in ("Last of 3 is linear with 0.125.", "Chance is 0.12.", "from 50 to 100", "Each curve is one run"):
        assert part in text
    averaged = [Compared(name, {"seeds": "3"}) for name in ENDS]
    assert "one run" not in lead(averaged, FOUND, "eval", None)[0]
    assert lead(RUNS[:1], {"vla": FOUND["vla"]}, "eval", None) == []


def test_the_page_is_valid_and_has_tables_settings_and_facts():
    text = render(page())
    assert read(text).loaded == ["data:,"]
    table = text.split('id="runs"')[1]
    assert table.index("vla") < table.index("softmax") < table.index("linear")  # the best first
    for part in ("train.lr", "0.30000000000000004", "Imaginary 9000", "0123456789<", "vla is best at the end"):
        assert part in text
    assert "train.steps" not in text  # all have the same


def test_a_run_without_a_curve_is_listed_and_named():
    text = render(page(found={name: FOUND[name] for name in ("vla", "linear")}))
    assert "Not drawn: softmax." in text
    assert text.split('id="runs"')[1].count("softmax") >= 1


def test_one_run_and_no_settings(tmp_path):
    text = render(page(runs=[Compared("vla", {})], metrics={"vla": METRICS["vla"]}, found={"vla": FOUND["vla"]}))
    assert "vla ends with accuracy 0.9." in text
    assert "Settings that differ" not in text
    read(text)


def test_names_are_escaped():
    name = '<b>"x"</b>'
    text = render(page(runs=[Compared(name, {})], metrics={name: METRICS["vla"]}, found={name: FOUND["vla"]}))
    assert "<b>" not in text.split("<script")[0]
    read(text)


@needs_chromium
@pytest.mark.parametrize("width", [390, 1300])
def test_the_page_opens_fits_and_has_a_colour_a_mechanism(visit, tmp_path, width):
    opened = visit(write(page(), tmp_path / "compare.html"), width=width, color_scheme="dark")
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.locator("h1").inner_text() == "vla is best at the end: accuracy 0.9, 0.4 above softmax."
    strokes = opened.locator("#curves svg .mark-line path").evaluate_all(
        "all => all.map((x) => x.getAttribute('stroke'))"
    )
    assert {each.upper() for each in strokes} == {"#E69F00", "#009E73", "#808080"}
    names = opened.locator("#curves svg .role-legend-label text").all_text_contents()
    assert sorted(names) == sorted(ENDS)
    opened.locator("summary", has_text="Settings that differ").click()
    assert opened.get_by_role("group", name="Settings that differ").is_visible()
