"""The table of docs/language.md is that of the recorded runs."""

import json
import statistics

import pytest

from benchmarks import measure
from benchmarks.lm import contenders, table
from benchmarks.lm.contenders import FULL, budget


def made(name, seed, bits, purpose="report", rate=1e-3, corpus="a", status="finished"):
    settings = {"contender": name, "purpose": purpose, "rate": rate, "seed": seed, "rows": 4, "context": 2048}
    return {
        "settings": {**settings, "contexts": [512, 2048], "tokens": 81920, "corpus": corpus},
        "status": status,
        "steps": 10,
        "parameters": 29_520_384,
        "state bytes": {"512": 1, "2048": 2_162_752},
        "tokens/s": 600_000.0,
        "bits per byte": {"512": bits, "2048": bits - 0.1} if status == "finished" else {},
        "environment": {"gpus": ["a GPU"], "processor": "a CPU"},
    }


def test_the_docs_have_the_table_of_the_recorded_runs():
    assert table.page() == table.DOCS.read_text()


def test_the_docs_have_the_budget_and_every_contender():
    page = table.DOCS.read_text()
    for row in budget(FULL):
        assert "| " + " | ".join(row) + " |" in page
    assert f"{FULL.steps(FULL.tokens)} steps" in page
    assert all(f"| {name} |" in page for name in contenders.CONTENDERS)


def test_nothing_was_run():
    assert table.markdown([]) == table.markdown([made("vla", 0, 2.0, "choice")]) == table.NOT_RUN


def test_means_and_spreads_over_seeds():
    runs = [made("softmax", 1, 1.5), made("vla", 0, 9.0, "choice", 3e-3), made("vla", 1, 1.6), made("vla", 2, 1.7)]
    header, _, softmax, vla, _, note = table.markdown(runs).split("\n")
    assert header.startswith("|  | bits per byte at 512 | bits per byte at 2k | tokens/s |")
    assert softmax == "| softmax | 1.500 | 1.400 | 0.60 M | 29.5 M | 2.16 MB | 0.001 | 1 |"
    assert vla == "| vla | 1.650 ± 0.050 | 1.550 ± 0.050 | 0.60 M | 29.5 M | 2.16 MB | 0.001 | 1, 2 |"
    assert "10 steps of 4 rows of 2048 bytes, 0.1 million in total; a GPU" in note
    assert "Rates tried: 0.003" in note


def test_runs_on_other_text_are_in_another_table():
    runs = [made("softmax", 1, 1.5), made("vla", 1, 1.6, corpus="b"), made("linear", 1, 1.7)]
    first, second = table.markdown(runs).split("Text b:")
    assert first.startswith("Text a:\n\n|  | bits per byte at 512 |")
    assert "softmax" in first
    assert "linear" in first
    assert "| vla |" in second


def test_a_contender_that_is_no_longer_one_comes_last():
    runs = [made("before", 1, 1.5), made("vla", 1, 1.6)]
    assert [line.split(" | ")[0] for line in table.markdown(runs).split("\n")[2:4]] == ["| vla", "| before"]


def test_a_rate_that_was_given_up_is_left_out():
    runs = [made("vla", 1, 9.0, rate=1e-3), made("vla", 1, 1.6, rate=3e-3), made("vla", 2, 1.7, rate=3e-3)]
    assert "| vla | 1.650 ± 0.050 | 1.550 ± 0.050 | 0.60 M | 29.5 M | 2.16 MB | 0.003 | 1, 2 |" in table.markdown(runs)


def test_a_seed_that_diverged_is_said():
    runs = [made("vla", 1, 1.6), made("vla", 2, 1.6, status="diverged")]
    assert "| vla | diverged | diverged | 0.60 M |" in table.markdown(runs)


def test_the_table_is_drawn_between_its_marks():
    page = "before\n<!-- a -->\nold\n<!-- end -->\n<!-- b -->\nother\n<!-- end -->\nafter\n"
    assert measure.drawn(page, "a", "new") == page.replace("old", "new")
    assert measure.drawn(page, "b", "new") == page.replace("other", "new")
    with pytest.raises(ValueError, match="no place for the table"):
        measure.drawn("nothing", "a", "new")


def test_what_the_docs_say_of_softmax_is_recorded():
    page = " ".join(table.DOCS.read_text().split())
    again = json.loads((measure.RESULTS / "lm_again.json").read_text())["runs"]
    runs = [run for run in table.recorded() if run["settings"]["contender"] == "softmax"]

    def bits(of, purpose, rate, seed):
        found = [
            run["bits per byte"]["2048"]
            for run in of
            if [run["settings"][name] for name in ("purpose", "rate", "seed")] == [purpose, rate, seed]
        ]
        return f"{found[0]:.3f}"

    first, second = (bits(of, "report", 0.0045, 1) for of in (again, runs))
    assert f"had {first} at 2k where this one has {second}" in page
    curves = [
        dict(next(run["loss"] for run in of if run["settings"]["purpose"] == "report" and run["settings"]["seed"] == 1))
        for of in (again, runs)
    ]
    apart = [step for step in curves[0] if abs(curves[0][step] - curves[1][step]) > 0.02]
    assert "the losses agree within 0.02 for 480 of 762 steps" in page
    assert min(apart) > 480
    first, second = (bits(of, "choice", 0.0135, 0) for of in (runs, again))
    assert f"with the same code gave {first} and {second}" in page
    first, second = (bits(of, "choice", 0.0045, 0) for of in (runs, again))
    assert f"another gave {first} with the earlier kernels and {second} with these" in page


def test_what_the_docs_say_of_differences_is_recorded():
    page = " ".join(table.DOCS.read_text().split())
    mean = {}
    (runs,) = table.comparable([run for run in table.recorded() if run["settings"]["purpose"] == "report"])
    for run in runs:
        for context, value in run["bits per byte"].items():
            mean.setdefault((run["settings"]["contender"], context), []).append(value)

    def gain(of, over, context):
        return statistics.mean(mean[over, context]) - statistics.mean(mean[of, context])

    assert f"Updating A helps**: by {gain('vla', 'vla, A fixed', '2048'):.3f} at 2k" in page
    assert f"and {gain('vla', 'vla, A fixed', '32768'):.3f} at 32k" in page
    ahead = [
        f"{abs(alone - both):.3f} {'ahead' if both < alone else 'behind'}"
        for context in ("2048", "32768")
        for alone, both in zip(mean["vla", context], mean["vla and softmax", context], strict=True)
    ]
    said = "At 2k they are {} of VLA alone with one seed and {} with the other; at 32k, {} and {}"
    assert said.format(*ahead) in page
    behind = (f"{gain('deltanet', 'vla', context):.2f}" for context in ("2048", "32768"))
    assert "{} bits per byte behind at the training length and {} at 32k".format(*behind) in page
