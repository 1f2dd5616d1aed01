"""Numbers of README and docs are the committed measurements, examples run, and Markdown files name files that exist."""

import json
import re
import shlex
from pathlib import Path
from statistics import mean, median

import pytest
from typer.main import get_command

from evaluation import recall
from reproduction.records import load
from reproduction.runs import FULL
from varla.cli.main import app
from varla.cli.sweep import EXAMPLE
from varla.cli.train import default_folder, read
from varla.runs.outcomes import EXIT_CODES, EXIT_USAGE
from varla.training import sweep

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
LAB = (ROOT / "docs" / "lab.md").read_text()
BACKENDS = (ROOT / "docs" / "backends.md").read_text()
PAGES = sorted(
    str(page.relative_to(ROOT)) for where in ("*", "benchmarks/*", "docs/**/*") for page in ROOT.glob(f"{where}.md")
)


def test_numbers_are_those_of_the_committed_benchmark():
    results = json.loads((ROOT / "benchmarks" / "results" / "cpu.json").read_text())
    chunk = results["loop"]["speed-up over the reference"]["chunk"]
    long = next(row for row in results["scaling"] if row["T"] == 16384)
    peak = next(row for row in results["memory"] if (row["T"], row["D"]) == (4096, 32))
    rows = BACKENDS.split("checked by tests/test_readme.py -->")[1].split("\n\n")[0]
    cells = re.findall(r"\| ([\d.]+)x?[^|]*\|$", rows, flags=re.MULTILINE)
    assert cells == [
        f"{chunk['forward']:.0f}",
        f"{chunk['forward+backward']:.0f}",
        f"{results['loop']['chunk forward over softmax forward']:.2f}",
        f"{long['forward over softmax']:.2f}",
        f"{peak['(peak - states) / inputs']:.1f}",
    ]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 120


def test_gated_vla_equals_gated_deltanet_at_the_cost_it_says():
    runs = json.loads((ROOT / "benchmarks" / "results" / "lm_gated.json").read_text())["runs"]
    chosen = [run for run in runs if run["settings"]["corpus"] == "eb05f67f0f64f97b"]
    bits, speeds = {}, {}
    for name in ("gated-vla", "gated-deltanet"):
        own = [run for run in chosen if run["settings"]["contender"] == name]
        assert {run["settings"]["seed"] for run in own} == {1, 2, 3}
        bits[name] = {context: [run["bits per byte"][context] for run in own] for context in ("2048", "32768")}
        speeds[name] = median(run["tokens/s"] for run in own)
    for context, ours in bits["gated-vla"].items():
        other = bits["gated-deltanet"][context]
        assert abs(mean(ours) - mean(other)) < max(max(each) - min(each) for each in (ours, other)) / 2
    ratio = speeds["gated-deltanet"] / speeds["gated-vla"]
    assert f"it equals Gated DeltaNet, at {ratio:.2f} times the cost" in " ".join(README.split())


def test_gated_vla_recalls_what_it_says():
    found = {}
    results, rates = load(ROOT / recall.RECORDS, "full"), recall.SCALES["full"].rates
    for point in recall.points(results, FULL):
        found.setdefault(point["mechanism"], []).append(point["accuracy"])
    least, most = min(found["gated-vla"]), max(found["gated-vla"])
    assert f"128 pairs ({least:.2f} to {most:.2f} over three seeds)" in " ".join(README.split())
    assert len(found["gated-vla"]) == 3 * 2  # seeds and rates
    assert least > 0.9
    says = "Gated VLA learns to recall with every seed, Gated DeltaNet with one of three"
    for page in (README, (ROOT / "docs" / "index.md").read_text()):
        assert says in " ".join(page.split())
    assert max(found["gated-deltanet"]) < 0.02
    for name in ("deltanet, wide", "gated-deltanet, wide"):
        by_seed = [results.accuracies(recall.run(name, 128, rate, seed, FULL) for rate in rates) for seed in FULL.seeds]
        assert [len(seed) for seed in by_seed] == [2, 2, 2]
        assert sum(min(seed) > most for seed in by_seed) == 1  # "with one of three"
        assert sum(max(seed) < 0.02 for seed in by_seed) == 2


def test_exit_codes_are_those_of_the_command():
    sentence = " ".join(LAB.split("Exit codes: ")[1].split(".")[0].split())
    words = {0: "fine", 1: "a run of a sweep failed", 2: "usage", 3: "diverged", 130: "stopped by Ctrl-C after saving"}
    assert sentence == ", ".join(f"{code} {words[code]}" for code in sorted((*EXIT_CODES.values(), EXIT_USAGE)))


def test_the_examples_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    operator, layer_and_model = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    exec(compile(operator, "README.md", "exec"), names)
    assert names["q"].grad is not None
    assert (tmp_path / "memory.safetensors").stat().st_size > 0
    assert names["state"].t.tolist() == [1001, 1001]
    exec(compile(layer_and_model, "README.md", "exec"), names)
    assert names["y"].shape == (2, 1, 128)
    assert names["text"].shape == (1, 36)


def test_the_grids_are_grids(tmp_path):
    (shown,) = re.findall(r"```yaml\n(.*?)```", LAB, flags=re.DOTALL)
    (tmp_path / "grid.yaml").write_text(shown)
    for file in (tmp_path / "grid.yaml", ROOT / "examples" / "grid.yaml"):
        assert len(sweep.expand(*sweep.read(file), tmp_path)) == 12
    assert sweep.read(tmp_path / "grid.yaml") == sweep.read(ROOT / "examples" / "grid.yaml")
    for each in EXAMPLE:
        (tmp_path / "grid.yaml").write_text(each.split('"')[1])
        assert sweep.expand(*sweep.read(tmp_path / "grid.yaml"), tmp_path)


@pytest.mark.parametrize("page", [page for page in PAGES if page == "README.md" or page.startswith("docs/")])
def test_commands_have_the_options_that_are_shown(page):
    commands = get_command(app)
    for line in re.findall(
        r"^ {4}(?:torchrun \S+ \S+ -m )?varla (\S.*)$", (ROOT / page).read_text(), flags=re.MULTILINE
    ):
        name, *arguments = shlex.split(line.replace("...", "").partition(" > ")[0], comments=True)
        command = commands.commands[name]
        command = getattr(command, "commands", {}).get(arguments[0] if arguments else "", command)  # tasks show
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        assert {word.partition("=")[0] for word in arguments if word.startswith("--")} <= known, line


def test_the_folder_that_is_resumed_is_the_one_that_was_made():
    (line,) = re.findall(r"varla train (--set.*)$", LAB, flags=re.MULTILINE)
    (folder,) = re.findall(r"varla train --resume (\S+)", LAB)
    assert str(default_folder(read(None, [word for word in line.split() if "=" in word]))) == folder


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
    for target in re.findall(r"(?:\]\(|\b(?:src|srcset)=\")([^)\"\s]+)[)\"]", here.read_text()):
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
