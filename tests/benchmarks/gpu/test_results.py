"""The numbers in benchmarks/RESULTS.md and in the README are those of benchmarks/results/gpu.json."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.gpu import gated, sections

ROOT = Path(__file__).parents[3]
SECTIONS = json.loads((ROOT / "benchmarks/results/gpu.json").read_text())["sections"]
RESULTS = " ".join((ROOT / "benchmarks/RESULTS.md").read_text().split())
README = " ".join((ROOT / "README.md").read_text().split())
NOT_YET = {"mesa"}  # sections that have not been run
FORMS = ("varla, no refresh", "varla, refresh 20", "DeltaNet", "MesaNet", "SDPA", "SDPA, flash")


def rows(section, title):
    """The rows of the section's table whose title begins so."""
    return next(table for name, table in SECTIONS[section]["tables"].items() if name.startswith(title))


def short(x):
    """Three digits, as the tables have them."""
    return f"{x:.2f}" if x < 10 else f"{x:.1f}"


def goal(section, name):
    return next(each["found"] for each in SECTIONS[section]["goals"] if each["goal"] == name)


def test_every_section_was_run_and_none_failed():
    assert set(SECTIONS) == set(sections.SECTIONS) - NOT_YET
    assert not [name for name, section in SECTIONS.items() if section["error"]]


@pytest.mark.parametrize("shape", ["D=128 B=8 T=4096", "D=128 B=1 T=32768", "D=64 B=8 T=4096"])
def test_the_table_of_times(shape):
    found = {row["form"]: row for row in rows("speed", "bf16") if row["shape"] == shape}
    cells = [f"{short(found[form]['forward ms'])} / {short(found[form]['both ms'])}" for form in FORMS]
    assert f"| {shape} | {' | '.join(cells)} |" in RESULTS


@pytest.mark.parametrize("shape", ["D=128 B=8 T=4096", "D=128 B=1 T=32768", "D=64 B=8 T=4096"])
def test_the_table_with_gates(shape):
    found = {row["form"]: row for row in rows("gated", "bf16") if row["shape"] == shape}
    cells = [f"{short(found[form]['forward ms'])} / {short(found[form]['both ms'])}" for form in gated.FORMS]
    assert f"| {shape} | {' | '.join(cells)} |" in RESULTS


def test_what_gates_cost():
    ours = [goal("gated", f"D=128 B=8 T=4096, gated vla / gated delta rule, {x} ms") for x in ("forward", "both")]
    other = [goal("gated", f"D=128 B=8 T=4096, gated delta rule / delta rule, {x} ms") for x in ("forward", "both")]
    assert f"{other[0]:.2f} / {other[1]:.2f} and {ours[0]:.2f} / {ours[1]:.2f} at B=8" in RESULTS
    steps = [goal("gated", f"training step, {x}") for x in ("gated-vla / gated-deltanet", "gated-deltanet / deltanet")]
    assert f"without a graph {steps[0]:.2f} times, and gated-deltanet's {steps[1]:.2f} of deltanet's" in RESULTS
    speeds = {
        run["settings"]["contender"]: run["tokens/s"]
        for run in json.loads((ROOT / "benchmarks/results/lm_gated.json").read_text())["runs"]
    }
    ratio = speeds["gated-deltanet"] / speeds["gated-vla"]
    assert f"gated-vla's takes {ratio:.2f} times gated-deltanet's" in RESULTS


def test_memory_and_the_papers_claims():
    found = {row["form"]: row for row in rows("speed", "bf16") if row["shape"] == "D=128 B=8 T=4096"}
    beyond = [f"{found[form]['beyond inputs MB']:.0f}" for form in ("varla, no refresh", "varla, refresh 20")]
    assert f"{beyond[0]} MB without refresh, {beyond[1]} MB with" in RESULTS
    passes = [f"{form}, {x}" for form in ("no refresh", "refresh 20") for x in ("forward", "forward+backward")]
    over = [f"{goal('paper', f'speed-up over the loop, varla, {x}'):.0f}x" for x in passes]
    assert f"{over[0]} forward and {over[1]} with the backward (no refresh), {over[2]} and {over[3]}" in RESULTS
    meets = [
        round(goal("paper", f"tokens where varla, {form} passes {kind}"), -2)
        for kind in ("SDPA, flash", "SDPA")
        for form in ("no refresh", "refresh 20")
    ]
    words = [f"{int(x):,}".replace(",", " ") for x in meets]
    assert f"faster from {words[0]} tokens on without refresh" in RESULTS
    assert f"from {words[1]} with" in RESULTS
    assert f"from {words[2]} and {words[3]}" in RESULTS


def test_the_loop_and_the_sequential_kernel():
    over = {row["form"]: row for row in rows("paper", "float32") if row["pass"] == "forward"}
    loops = [over[form]["loop ms"] / 1000 for form in FORMS[:2]]
    assert f"the loop takes {loops[0]:.1f} and {loops[1]:.1f} s forward" in RESULTS
    names = [f"sequential, {form}" for form in FORMS[:2]]
    times = [f"{over[name]['speed-up']:.0f}x" for name in names]
    assert f"{times[0]} without refresh, {times[1]} with refresh 20" in RESULTS
    took = [f"{over[name]['triton ms']:.1f}" for name in names]
    assert f"it takes {took[0]} and {took[1]} ms" in RESULTS
    by_length = {row["T"]: row for row in rows("paper", "forward ms")}
    token = [1000 * row[name] / T for T, row in by_length.items() for name in names]
    assert f"{min(token):.1f} to {max(token):.1f} us a token, {by_length[4096][names[0]]:.0f} ms at T=4096" in RESULTS
    notes = SECTIONS["paper"]["notes"]
    assert all(f"{name} passes {kind} at - tokens" in notes for name in names for kind in ("SDPA", "SDPA, flash"))
    assert f"never passes flash attention, nor PyTorch's own choice, up to T={max(by_length)}" in RESULTS
    slower = [row[f"sequential, {form}"] > row[form] for row in by_length.values() for form in FORMS[:2]]
    assert all(slower)


def test_growth_decoding_and_cold_starts():
    passes = [f"{form}, {x}" for form in ("no refresh", "refresh 20") for x in ("forward", "both")]
    worst = [f"{goal('linear', f'largest over smallest, varla, {x}'):.2f}" for x in passes]
    assert f"(largest over smallest {worst[0]})" in RESULTS
    assert f"({worst[1]}; " in RESULTS
    assert f"with refresh {worst[2]} and {worst[3]}" in RESULTS
    assert f"{goal('linear', 'training step, vla / deltanet'):.2f} of the same step" in RESULTS
    assert f"{goal('decode', 'state traffic over copy bandwidth'):.3f} of the copy's bandwidth" in RESULTS
    cold = [goal("cold", f"D={D}: seconds to the first forward+backward") for D in (64, 128)]
    assert f"{cold[0]:.1f} s at D=64, {cold[1]:.1f} s at D=128" in RESULTS


def test_accuracy():
    worst = {row["type"]: row for row in rows("accuracy", "relative error")}
    for dtype in ("float32", "bfloat16", "float16"):
        outputs = re.sub(r"e-0", "e-", f"{worst[dtype]['outputs']:.1e}")
        assert f"| {dtype} | {outputs} |" in RESULTS
        assert not worst[dtype]["failed"]
    over = [(row["type"], row["of"]) for row in rows("accuracy", "over the bound")]
    counts = [over.count(each) for each in (("float32", "dq"), ("bfloat16", "dq"), ("bfloat16", "du"))]
    assert f"met but for dq in {counts[0]} cases" in RESULTS
    assert f"met but for dq in {counts[1]} cases and du in {counts[2]}" in RESULTS


README_ROWS = {  # section and form
    "VLA, no refresh (varla)": ("speed", "varla, no refresh"),
    "VLA, refresh 20 (varla)": ("speed", "varla, refresh 20"),
    "Gated VLA (varla)": ("gated", "gated vla, forgetting"),
    "FLA DeltaNet": ("speed", "DeltaNet"),
    "FLA MesaNet": ("speed", "MesaNet"),
    "softmax attention (PyTorch)": ("speed", "SDPA"),
}


@pytest.mark.parametrize("name", README_ROWS)
def test_the_table_of_the_readme(name):
    section, form = README_ROWS[name]
    found = {(row["shape"], row["form"]): row for row in rows(section, "bf16")}
    cells = []
    for D in (64, 128):
        row = found[f"D={D} B=8 T=4096", form]
        cells += [f"{short(row['forward ms'])} / {short(row['both ms'])}", f"{8 * 4096 / row['both ms'] / 1e3:.1f} M"]
    assert f"| {name} | {' | '.join(cells)} |" in README


def test_the_long_sequence_of_the_readme():
    found = {row["form"]: row["both ms"] for row in rows("speed", "bf16") if row["shape"] == "D=128 B=1 T=32768"}
    ours, refreshed, softmax = (short(found[form]) for form in ("varla, no refresh", "varla, refresh 20", "SDPA"))
    words = f"VLA takes {ours} ms forward and backward, softmax attention {softmax} ms, VLA with refresh {refreshed} ms"
    assert words in README
