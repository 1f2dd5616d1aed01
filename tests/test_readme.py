"""The README's numbers are the committed measurements, its examples run, and Markdown files name files that exist."""

import json
import re
from pathlib import Path

import pytest

from varla.runs.outcomes import EXIT_CODES, EXIT_USAGE

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = sorted(
    str(page.relative_to(ROOT)) for where in ("*", "benchmarks/*", "docs/**/*") for page in ROOT.glob(f"{where}.md")
)


def test_numbers_are_those_of_the_committed_benchmark():
    results = json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text())
    chunk = results["loop"]["speed-up over the reference"]["chunk"]
    long = next(row for row in results["scaling"] if row["T"] == 16384)
    peak = next(row for row in results["memory"] if (row["T"], row["D"]) == (4096, 32))
    rows = README.split("checked by tests/test_readme.py -->")[1].split("\n\n")[0]
    cells = re.findall(r"\| ([\d.]+)x?[^|]*\|$", rows, flags=re.MULTILINE)
    assert cells == [
        f"{chunk['forward']:.0f}",
        f"{chunk['forward+backward']:.0f}",
        f"{results['loop']['chunk forward over softmax forward']:.2f}",
        f"{long['forward over softmax']:.2f}",
        f"{peak['(peak - states) / inputs']:.1f}",
    ]


def test_exit_codes_are_those_of_the_command():
    sentence = " ".join(README.split("Exit codes: ")[1].split(".")[0].split())
    words = {0: "fine", 1: "a run of a sweep failed", 2: "usage", 3: "diverged", 130: "stopped by Ctrl-C after saving"}
    assert sentence == ", ".join(f"{code} {words[code]}" for code in sorted((*EXIT_CODES.values(), EXIT_USAGE)))


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    operator, layer, family = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(operator, "README.md", "exec"), names)
    assert names["q"].grad is not None
    assert (tmp_path / "memory.safetensors").stat().st_size > 0
    assert names["state"].t.tolist() == [2001, 2001]
    exec(compile(layer, "README.md", "exec"), names)
    assert names["y"].shape == (2, 1, 128)
    exec(compile(family, "README.md", "exec"), names)
    assert names["text"].shape == (1, 36)


def anchors(page: Path) -> set[str]:
    """What a link may point to: headings, as GitHub names them, and elements with an id."""
    text = page.read_text()
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings} | set(
        re.findall(r'id="([^"]+)"', text)
    )


@pytest.mark.parametrize("page", PAGES)
def test_links_resolve(page):
    here = ROOT / page
    for target in re.findall(r"\]\(([^)\s]+)\)", here.read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = here.parent / path if path else here
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


@pytest.mark.parametrize("page", [page for page in PAGES if page == "README.md" or page.startswith("docs/")])
def test_named_files_exist(page):
    folders = "benchmarks|configs|docs|examples|reports|reproduction|src|tests"
    for path in re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*[\w/])", (ROOT / page).read_text()):
        assert (ROOT / path).exists(), path
