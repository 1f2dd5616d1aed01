"""Every label is what a plain reader finds in the inputs, and stands where the task says."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tasks.readers import CASES, IDS, generator, read, scored_count, tokens
from varla import tasks

CASE = pytest.mark.parametrize(("name", "given_settings"), CASES, ids=IDS)


def labels_by_reader(name, inputs, given_settings):
    rows = []
    for row in inputs.tolist():
        answers = read(name, row, given_settings)
        rows.append([answers.get(t, -100) for t in range(len(row))])
    return rows


@CASE
def test_labels_are_what_a_reader_finds(name, given_settings):
    inputs, labels = tasks.make(name, **given_settings).batch(50, generator=generator())
    assert labels.tolist() == labels_by_reader(name, inputs, given_settings)


@CASE
def test_shape_type_and_range(name, given_settings):
    task = tasks.make(name, **given_settings)
    inputs, labels = task.batch(7, generator=generator())
    assert (task.seq_len, task.vocab_size) == (given_settings["seq_len"], given_settings["vocab_size"])
    assert inputs.shape == labels.shape == (7, task.seq_len)
    assert inputs.dtype == labels.dtype == torch.int64
    assert inputs.min() >= 0
    assert inputs.max() < task.vocab_size
    assert ((labels == tasks.IGNORE) | ((labels >= 0) & (labels < task.vocab_size))).all()


@CASE
def test_number_of_scored_positions(name, given_settings):
    _, labels = tasks.make(name, **given_settings).batch(20, generator=generator())
    assert (labels != -100).sum(1).tolist() == [scored_count(name, given_settings)] * 20


@CASE
def test_every_token_that_may_stand_somewhere_does(name, given_settings):
    inputs, labels = tasks.make(name, **given_settings).batch(400, generator=generator())
    keys, values, filler = tokens(name, **given_settings)
    answers = labels[labels != -100]
    assert set(answers.tolist()) == values
    n = given_settings.get("n")
    if n is None:
        assert set(inputs[:, : given_settings["seq_len"] // 2].flatten().tolist()) == values
        return
    assert set(inputs[:, 0 : 2 * n : 2].flatten().tolist()) == keys
    assert set(inputs[:, 1 : 2 * n : 2].flatten().tolist()) == values
    if name == "noisy-recall":
        noise = inputs[:, 2 * n : -n - 1]
        assert set(noise.flatten().tolist()) == (filler if noise.shape[1] else set())
    # The keys that are asked for are all keys, not only those of some places.
    assert set(inputs[labels != -100].tolist()) == keys


@CASE
def test_chance_is_the_accuracy_of_a_uniform_guess(name, given_settings):
    task = tasks.make(name, **given_settings)
    _, labels = task.batch(2000, generator=generator())
    answers = labels[labels != -100]
    possible = torch.tensor(sorted(tokens(name, **given_settings)[1]))
    guesses = possible[torch.randint(len(possible), answers.shape, generator=generator(1))]
    spread = (task.chance * (1 - task.chance) / len(answers)) ** 0.5
    assert task.chance == pytest.approx(1 / len(possible))
    # The positions of a sequence share their values, so their hits are not independent: 8 standard errors.
    assert abs((guesses == answers).double().mean() - task.chance) <= 8 * spread


@CASE
def test_best_is_the_accuracy_of_a_reader(name, given_settings):
    task = tasks.make(name, **given_settings)
    inputs, labels = task.batch(50, generator=generator(3))
    found = torch.tensor(labels_by_reader(name, inputs, given_settings))
    scored = labels != -100
    assert (found == labels)[scored].double().mean().item() == task.best


@pytest.mark.parametrize(("name", "given_settings"), [c for c in CASES if c[0] != "copy-identity"])
def test_an_answer_follows_from_what_came_before_it(name, given_settings):
    """The reader of a sequence cut off after a scored position still finds the answer there: nothing looks ahead."""
    inputs, labels = tasks.make(name, **given_settings).batch(4, generator=generator(5))
    n = given_settings.get("n")
    for row, wanted in zip(inputs.tolist(), labels.tolist(), strict=True):
        for t in (t for t, label in enumerate(wanted) if label != -100):
            seen = row[: t + 1]
            if n is None:
                found = seen[t - len(row) // 2]
            else:
                found = dict(zip(seen[0 : 2 * n : 2], seen[1 : 2 * n : 2], strict=True))[seen[t]]
            assert found == wanted[t]


PAPER_LENGTHS = [(n, 3 * n + 1) for n in (4, 8, 12, 16, 24, 32, 48, 64, 96)] + [(8, T) for T in (64, 128, 256, 512)]


@pytest.mark.parametrize(("n", "length"), PAPER_LENGTHS)
def test_the_papers_sizes(n, length):
    task = tasks.make("mqar", n=n, seq_len=length)
    inputs, labels = task.batch(3, generator=generator())
    assert labels.tolist() == labels_by_reader("mqar", inputs, {"n": n, "vocab_size": 128})
    assert (task.vocab_size, task.chance) == (128, 1 / 127)


def test_the_papers_copy_sequence_has_63_tokens():
    inputs, labels = tasks.make("copy-identity", seq_len=63).batch(2, generator=generator())
    assert (inputs[:, :31] == inputs[:, 32:]).all()
    assert (inputs[:, 31] == 127).all()
    assert (labels[:, 32:] == inputs[:, 32:]).all()
    assert (labels[:, :32] == -100).all()


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_labels_are_what_a_reader_finds_at_any_size(data):
    name = data.draw(st.sampled_from(["mqar", "mqar-disjoint", "mqar-ood", "mqar-zoology", "noisy-recall"]))
    n = data.draw(st.integers(1, 12))
    extra = data.draw(st.integers(0, 30))
    chosen = {"n": n, "vocab_size": data.draw(st.integers(2 * n + 4, 60))}
    chosen["seq_len"] = 4 * n + 2 * extra if name == "mqar-zoology" else 3 * n + 1 + extra
    if name == "noisy-recall":
        chosen["fillers"] = data.draw(st.integers(1, chosen["vocab_size"] - 2 * n - 1))
    inputs, labels = tasks.make(name, **chosen).batch(3, generator=generator(data.draw(st.integers(0, 9))))
    assert labels.tolist() == labels_by_reader(name, inputs, chosen)


def test_defaults():
    lengths = {name: tasks.make(name).seq_len for name in tasks.names()}
    assert lengths == {
        "mqar": 25,
        "mqar-zoology": 32,
        "mqar-disjoint": 25,
        "mqar-ood": 25,
        "copy": 64,
        "copy-identity": 64,
        "noisy-recall": 25 + 128,
    }
    sizes = {name: tasks.make(name).vocab_size for name in tasks.names()}
    assert sizes.pop("mqar-zoology") == 8192
    assert set(sizes.values()) == {128}
