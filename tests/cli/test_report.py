"""varla report: writes what it says, and says what to do where it cannot."""

import pytest

from tests.cli.cases import refused, varla
from tests.report import fabricated
from varla.experiments import items


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A repository of fabricated records, as the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(items, "ITEMS", fabricated.ITEMS)
    fabricated.write(tmp_path / "reports")
    return tmp_path


def test_the_page_is_written_and_verdicts_are_counted(folder):
    result = varla("report")
    assert result.exit_code == 0, result.output
    assert (folder / "runs" / "report" / "index.html").stat().st_size > 500_000
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in result.stdout.splitlines() if "│" in line]
    assert {name: int(n) for name, n in rows} == fabricated.VERDICT_COUNTS
    assert "written  runs/report/index.html" in result.stdout
    assert not (folder / "docs").exists()


def test_docs_are_written_when_asked_for(folder):
    (folder / "README.md").write_text("a\n<!-- reproduction: begin -->\n<!-- reproduction: end -->\nb\n")
    result = varla("report", "--docs", "--out", "page.html")
    assert result.exit_code == 0, result.output
    for name in ("page.html", "docs/reproduction.md", "docs/figures/reproduction/recall.svg", "README.md"):
        assert f"written  {name}" in result.stdout
        assert (folder / name).exists()


def test_what_is_missing_or_damaged_is_named(folder):
    assert refused(varla("report", "--reports", "nowhere"), "no records in nowhere", "varla reproduce --preset quick")
    assert refused(varla("report", "--out", "page.pdf"), "FILE.html", "page.pdf")
    assert refused(varla("report", "--docs"), "no README.md", "root of the repository")
    (folder / "README.md").write_text("no markers")
    assert refused(varla("report", "--docs"), "README.md must hold")
    assert not (folder / "docs").exists()
    (folder / "reports" / "full" / "recall.json").write_text("{")
    assert refused(varla("report"), "recall.json is damaged")
