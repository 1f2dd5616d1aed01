"""The document and the README's rows: complete, legible as Markdown, and rewritten in place."""

import re

import pytest

from reproduction.items import ITEMS
from reproduction.report import charts, markdown
from reproduction.report.gather import gather
from tests.reproduction.report import fabricated

README = f"# varla\n\nbefore\n\n{markdown.BEGIN}\nold\n{markdown.END}\n\nafter\n"


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


def test_the_document_counts_verdicts_and_lists_every_claim(report):
    counts, claims, *_ = tables(markdown.document(report))
    assert {row[0].split(" ", 1)[1]: int(row[1]) for row in counts[2:]} == fabricated.VERDICT_COUNTS
    assert len(claims) == 2 + 8
    softmax = next(row for row in claims if "P7-softmax-8" in row[0])
    assert softmax[0] == '<a id="P7-softmax-8"></a>P7-softmax-8'
    assert softmax[5:7] == ["✗ not reproduced", "quick"]
    assert softmax[-1] == "`python -m reproduction run recall --preset quick`"


def test_all_rows_of_a_table_have_as_many_cells(report):
    for table in tables(markdown.document(report)):
        assert len({len(row) for row in table}) == 1


def test_sections_have_figures_tables_runs_and_settings(report):
    text = markdown.document(report)
    assert "![Recall of n pairs](figures/reproduction/recall.svg)" in text
    assert "empty.svg" not in text
    assert re.search(r"  - diverged: softmax mqar n=8 .*seed=42 .*: loss is \\<nan> at step 3", text)
    assert "- Preset `full`: 6 of 6 runs recorded, 6 min; `python -m reproduction run recall --preset full`" in text
    assert "Imaginary 9000" in text
    assert "as measured" in text


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
def test_the_block_links_into_the_document(report):
    text = markdown.block(report)
    assert "](docs/reproduction.md#P7-softmax-8)" in text
    assert "Of 8 claims: 3 reproduced, 1 reproduced with conditions, 1 not reproduced, 1 false, 2 not run." in text


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("|S| < 2*d", "\\|S\\| \\< 2\\*d"),
        ("`a*b|c` *", "`a*b\\|c` \\*"),
        ("a ` b", "a \\` b"),
        ("two\nlines", "two lines"),
    ],
)
def test_plain(given, shown):
    assert markdown.plain(given) == shown


def test_insert_replaces_what_is_between_the_markers_and_nothing_else():
    once = markdown.insert(README, "new")
    assert once == README.replace("old", "new")
    assert markdown.insert(once, "new") == once


@pytest.mark.parametrize("text", ["", markdown.BEGIN, f"{markdown.END}\n{markdown.BEGIN}", README + README])
def test_a_readme_without_its_markers_is_an_error(text):
    with pytest.raises(ValueError, match=r"README\.md must hold <!-- reproduction: begin -->"):
        markdown.insert(text, "new")


def test_write(report, tmp_path):
    (tmp_path / "README.md").write_text(README)
    pictures = tmp_path / markdown.PICTURES
    pictures.mkdir(parents=True)
    (pictures / "gone.svg").write_text("<svg/>")
    written = markdown.write(report, tmp_path)
    assert sorted(path.name for path in pictures.iterdir()) == ["kinds.svg", "norms.svg", "recall.svg"]
    assert set(written) == {tmp_path / "README.md", tmp_path / markdown.DOCUMENT, *pictures.iterdir()}
    assert (tmp_path / markdown.DOCUMENT).read_text() == markdown.document(report)
    assert markdown.block(report) in (tmp_path / "README.md").read_text()
    drawing = report.sections[0].drawings[0]
    assert charts.stamp(drawing.figure) in (pictures / "recall.svg").read_text()


def test_pictures_of_the_same_data_are_left_as_they_are(report, tmp_path):
    (tmp_path / "README.md").write_text(README)
    markdown.write(report, tmp_path)
    picture = tmp_path / markdown.PICTURES / "recall.svg"
    drawing = report.sections[0].drawings[0]
    picture.write_text(f"<svg/>\n{charts.stamp(drawing.figure)}\n")
    markdown.write(report, tmp_path)
    assert picture.read_text().startswith("<svg/>")
    picture.write_text("<svg/>\n<!-- data 0 -->\n")
    markdown.write(report, tmp_path)
    assert len(picture.read_text()) > 1000
