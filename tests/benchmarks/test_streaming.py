"""docs/streaming.md holds the committed measurements, and these show what it says of them."""

import json
from pathlib import Path

import pytest

from benchmarks import streaming

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs" / "streaming.md").read_text()
RESULTS = json.loads((ROOT / "benchmarks" / "results" / "streaming.json").read_text())


def count(number):
    return f"{number:,}".replace(",", " ")


def streamed(row):
    file = count(row["file bytes"]) if "file bytes" in row else ""
    reading, decoding = row["microseconds a token, reading"], row["microseconds a token, decoding"]
    size = count(row["state bytes"])
    return [
        count(row["tokens"]),
        f"{reading:.0f}",
        f"{decoding / 1e3:.1f}",
        size,
        file,
        f"{row['peak resident MB']:.0f}",
    ]


def scored(row):
    return [count(row["tokens"]), f"{row['microseconds a token']:.0f}", f"{row['peak resident MB']:.0f}"]


def rows_after(mark):
    lines = TEXT.split(f"<!-- streaming.json, {mark} -->")[1].strip().split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(("name", "cells"), [("vla", streamed), ("softmax", streamed), ("score", scored)])
def test_tables_are_those_of_the_committed_benchmark(name, cells):
    assert rows_after(name) == [cells(row) for row in RESULTS[name]]


def test_the_benchmark_was_whole():
    assert [row["tokens"] for row in RESULTS["vla"]] == list(streaming.LENGTHS)
    assert [row["tokens"] for row in RESULTS["score"]] == list(streaming.SCORED)
    assert [row["tokens"] for row in RESULTS["softmax"]] == [
        each for each in streaming.LENGTHS if each <= streaming.SOFTMAX
    ]
    assert RESULTS["machine"]["commit"]
    assert "dirty" not in RESULTS["machine"]["commit"]
    assert {key: RESULTS["model"][key] for key in streaming.MODEL} == streaming.MODEL


def test_memory_is_flat_to_a_million_tokens():
    vla, score = RESULTS["vla"], RESULTS["score"]
    assert len({(row["state bytes"], row["file bytes"]) for row in vla}) == 1
    assert vla[-1]["peak resident MB"] - vla[1]["peak resident MB"] < 8
    assert score[-1]["peak resident MB"] - score[1]["peak resident MB"] < 24  # buffers of text, full from 65 536 on
    for before, after in ((score[-3], score[-2]), (score[-2], score[-1])):
        assert after["peak resident MB"] - before["peak resident MB"] < 8


def test_softmax_is_not():
    states = [row["state bytes"] for row in RESULTS["softmax"]]
    assert states[-1] > 90 * states[0]


def test_jobs_run_at_a_small_size(capsys):
    rows = streaming.stream(("vla", [100, 300]))
    assert [row["tokens"] for row in rows] == [100, 300]
    assert rows[0]["file bytes"] == rows[1]["file bytes"]
    assert streaming.score(500)["predicted"] == 499
    assert capsys.readouterr().out.count("\n") == 3
