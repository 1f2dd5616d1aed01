"""The pages: complete, legible as Markdown, and rewritten in place."""

import re

import pytest

from reproduction.items import ITEMS
from reproduction.report import charts, markdown
from reproduction.report.gather import gather
from tests.reproduction.report import fabricated


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return gather(fabricated.ITEMS, fabricated.write(tmp_path_factory.mktemp("reports")))


def tables(text):
    """The tables of a document, as rows of cells."""
    found = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.replace("\\|", "¦").strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def test_the_overview_counts_verdicts_and_links_to_every_item(report):
    counts, _, items, *_ = tables(markdown.overview(report))
    assert {row[0].split(" ", 1)[1]: int(row[1]) for row in counts[2:]} == fabricated.VERDICT_COUNTS
    assert items[2] == ["P7", "[Recall](recall.md)", "4", "2", "", "1", "", "1"]
    assert [row[1] for row in items[2:]] == ["[Recall](recall.md)", "[Norms](norms.md)"]
    assert "Imaginary 9000" in markdown.overview(report)


def test_every_claim_is_on_the_page_of_its_item(report):
    pages = markdown.documents(report)
    for section in report.sections:
        claims, *_ = tables(pages[markdown.page_of(section.item)])
        assert [row[0] for row in claims[2:]] == [f'<a id="{x.anchor}"></a>{x.claim.id}' for x in section.rows]
    claims, *_ = tables(pages[markdown.FOLDER / "recall.md"])
    softmax = next(row for row in claims if "P7-softmax-8" in row[0])
    assert softmax[4:6] == ["0 (quick preset)", "✗ not reproduced"]


def test_all_rows_of_a_table_have_as_many_cells(report):
    for text in markdown.documents(report).values():
        for table in tables(text):
            assert len({len(row) for row in table}) == 1


def test_pages_have_figures_tables_runs_and_settings(report):
    text = "".join(markdown.page(section) for section in report.sections)
    assert "![Recall of n pairs](figures/recall.svg)" in text
    assert "empty.svg" not in text
    assert re.search(r"  - diverged: softmax mqar n=8 .*seed=42 .*: loss is &lt;nan> at step 3", text)
    assert "- Preset `full`: 6 of 6 runs recorded, 6 min; `python -m reproduction run recall --preset full`" in text
    assert "as measured" in text
    assert "Settings of these runs" in text


def test_headlines_are_claims_that_there_are():
    ids = {claim.id for item in ITEMS for claim in item.claims}
    assert set(markdown.HEADLINES) <= ids
    assert len(markdown.HEADLINES) == 10


@pytest.fixture
def chosen(monkeypatch):
    monkeypatch.setattr(markdown, "HEADLINES", ("P7-vla-24", "P7-softmax-8", "P7-none", "P12-*"))


@pytest.mark.usefixtures("chosen")
def test_headlines_are_ten_at_most_and_skip_what_there_is_not(report):
    found = [row.claim.id for row in markdown.headlines(report.rows)]
    assert found == ["P7-softmax-8", "P12-bounded", "P7-vla-24"]
    many = [row for row in report.rows for _ in range(3)]
    assert len(markdown.headlines(many)) <= 10


@pytest.mark.usefixtures("chosen")
def test_the_first_page_links_to_claims(report):
    assert "](recall.md#P7-softmax-8)" in markdown.overview(report)


def test_the_summary_counts_verdicts(report):
    wanted = "Of 8 claims: 3 reproduced, 1 reproduced with conditions, 1 not reproduced, 1 false, 2 not run."
    assert markdown.summary(report.rows) == wanted


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("|S| < 2*d", "\\|S\\| &lt; 2\\*d"),
        ("~1 [$]", "&#126;1 \\[&#36;\\]"),
        ("`a*b|c` *", "`a*b\\|c` \\*"),
        ("a ` b", "a \\` b"),
        ("two\nlines", "two lines"),
    ],
)
def test_plain(given, shown):
    assert markdown.plain(given) == shown


def test_another_folder_than_the_repository_is_an_error(report, tmp_path):
    with pytest.raises(ValueError, match=r"there is no docs/ in .*: run this in the root of the repository"):
        markdown.write(report, tmp_path)


def test_write(report, tmp_path):
    pictures = tmp_path / markdown.PICTURES
    pictures.mkdir(parents=True)
    (pictures / "gone.svg").write_text("<svg/>")
    (tmp_path / markdown.FOLDER / "gone.md").write_text("")
    written = markdown.write(report, tmp_path)
    assert sorted(path.name for path in pictures.iterdir()) == ["kinds.svg", "norms.svg", "recall.svg"]
    pages = {tmp_path / path: text for path, text in markdown.documents(report).items()}
    assert set(written) == {*pages, *pictures.iterdir()}
    assert {path: path.read_text() for path in (tmp_path / markdown.FOLDER).glob("*.md")} == pages
    drawing = report.sections[0].drawings[0]
    assert charts.stamp(drawing.figure) in (pictures / "recall.svg").read_text()


def test_pictures_of_the_same_data_are_left_as_they_are(report, tmp_path):
    (tmp_path / "docs").mkdir()
    markdown.write(report, tmp_path)
    picture = tmp_path / markdown.PICTURES / "recall.svg"
    drawing = report.sections[0].drawings[0]
    picture.write_text(f"<svg/>\n{charts.stamp(drawing.figure)}\n")
    markdown.write(report, tmp_path)
    assert picture.read_text().startswith("<svg/>")
    picture.write_text("<svg/>\n<!-- data 0 -->\n")
    markdown.write(report, tmp_path)
    assert len(picture.read_text()) > 1000
