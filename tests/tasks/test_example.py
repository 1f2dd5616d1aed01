"""An example shows the very tokens of a batch, which positions are scored and what the answers are."""

import re

import pytest

from tests.tasks.readers import CASES, IDS, generator
from varla import tasks


def parse(text):
    """Read the table back: {label: cells}, blocks joined."""
    rows = {"position": [], "input": [], "scored": [], "answer": []}
    for line in text.splitlines():
        label, *cells = line.split() or [""]
        if label in rows:
            rows[label] += cells
    return rows


def letter(name, settings, position, token):
    """What a token is shown as, by the definition of each task."""
    n, sep = settings.get("n", 0), settings["vocab_size"] - 1
    if name != "mqar-zoology" and token == sep:
        return "SEP"
    if name.startswith("copy"):
        return f"x{token}"
    if name == "mqar-zoology" and token == 0:
        return "0"
    if name == "noisy-recall" and token >= sep - settings["fillers"]:
        return f"f{token}"
    return f"v{token}" if position < 2 * n and position % 2 else f"k{token}"


@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_the_table_is_the_batch(name, settings, monkeypatch):
    monkeypatch.setattr("varla.tasks.example.SHORT_RUN", 10**9)
    task = tasks.make(name, **settings)
    inputs, labels = (x[0].tolist() for x in task.batch(1, generator(2)))
    rows = parse(task.example(generator(2)))
    kind = "x" if name.startswith("copy") else "v"
    assert rows["position"] == [str(t) for t in range(task.seq_len)]
    assert rows["input"] == [letter(name, settings, t, token) for t, token in enumerate(inputs)]
    assert rows["scored"] == ["." if label == -100 else "?" for label in labels]
    assert rows["answer"] == [f"{kind}{label}" for label in labels if label != -100]


def test_answers_stand_under_their_questions():
    text = tasks.make("mqar", n=4).example(generator())
    lines = text.split("\n\n")[1].splitlines()
    scored, answer = lines[2], lines[3]
    ends = [match.end() for match in re.finditer(r"\?", scored)]
    assert [match.end() for match in re.finditer(r"v\d+", answer)] == ends
    assert len(ends) == 4


def test_head_and_foot_name_the_task_and_count_what_is_scored():
    text = tasks.make("mqar", n=4).example(generator())
    assert text.startswith("mqar (seq_len=13, vocab_size=128, n=4)\n")
    assert text.endswith("Scored: 4 of 13 positions, marked ?, where the output must name the answer.")


def test_long_filler_is_left_out_and_counted():
    text = tasks.make("noisy-recall", n=2, seq_len=1007).example(generator())
    assert "(996 more)" in text
    numbers = [int(cell) for cell in parse(text)["position"] if cell != "..."]
    assert numbers == [*range(6), *range(1002, 1007)]


@pytest.mark.parametrize("name", tasks.names())
def test_lines_fit_a_terminal(name):
    extra = {} if name.startswith("copy") else {"n": 30}
    assert max(map(len, tasks.make(name, **extra).example(generator()).splitlines())) <= 100


@pytest.mark.parametrize(("name", "settings"), CASES, ids=IDS)
def test_the_description_is_one_paragraph_with_the_numbers_in_it(name, settings):
    task = tasks.make(name, **settings)
    text = task.describe()
    assert "\n" not in text
    assert text.endswith("the best possible accuracy is 1.")
    assert f"{task.chance:.4g}" in text
    assert re.search(rf"\b{task.seq_len} (tokens|inputs)", text)
    if "n" in settings:
        assert f"{settings['n']} key-value pairs" in text
