"""Readers that answer each task one token at a time from what came before, written without the package.

A reader takes one sequence and the settings and gives {position: answer}. It raises AssertionError where the sequence
does not have the layout that the task promises. `TOKENS` says which tokens may stand where.
"""

import torch

# Small vocabularies, so that every token turns up within a batch; shortest, longer and odd lengths.
CASES = [
    ("mqar", {"n": 1, "seq_len": 4, "vocab_size": 8}),
    ("mqar", {"n": 4, "seq_len": 13, "vocab_size": 8}),
    ("mqar", {"n": 7, "seq_len": 40, "vocab_size": 8}),
    ("mqar-zoology", {"n": 1, "seq_len": 4, "vocab_size": 4}),
    ("mqar-zoology", {"n": 3, "seq_len": 12, "vocab_size": 16}),
    ("mqar-zoology", {"n": 5, "seq_len": 36, "vocab_size": 17}),
    ("mqar-zoology", {"n": 4, "seq_len": 30, "vocab_size": 12, "power": 2.5}),
    ("mqar-disjoint", {"n": 4, "seq_len": 13, "vocab_size": 9}),
    ("mqar-disjoint", {"n": 5, "seq_len": 21, "vocab_size": 10}),
    ("mqar-ood", {"n": 3, "seq_len": 10, "vocab_size": 10}),
    ("mqar-ood", {"n": 4, "seq_len": 17, "vocab_size": 10, "keys": "ood"}),
    ("copy", {"seq_len": 2, "vocab_size": 5}),
    ("copy", {"seq_len": 18, "vocab_size": 8}),
    ("copy-identity", {"seq_len": 3, "vocab_size": 5}),
    ("copy-identity", {"seq_len": 16, "vocab_size": 8}),
    ("copy-identity", {"seq_len": 17, "vocab_size": 8}),
    ("noisy-recall", {"n": 3, "seq_len": 10, "vocab_size": 12, "fillers": 4}),
    ("noisy-recall", {"n": 4, "seq_len": 30, "vocab_size": 13, "fillers": 4}),
]
IDS = [f"{name}-{'-'.join(map(str, settings.values()))}" for name, settings in CASES]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def tokens(name, vocab_size, keys="id", fillers=16, **_):
    """Token sets as (keys, values, filler); for the copy tasks the content stands in place of the values."""
    sep, half = vocab_size - 1, vocab_size // 2
    everything = set(range(sep))
    low, high = set(range(half)), set(range(half, sep))
    if name == "mqar-zoology":
        return low - {0}, set(range(half, vocab_size)), {0}
    if name == "mqar-disjoint":
        return low, high, set()
    if name == "mqar-ood":
        return (low if keys == "id" else high), everything, set()
    if name == "noisy-recall":
        filler = set(range(sep - fillers, sep))
        rest = sorted(everything - filler)
        cut = (len(rest) + 1) // 2
        return set(rest[:cut]), set(rest[cut:]), filler
    return everything, everything, set()


def _pairs(row, n, keys, values):
    memory = {}
    for j in range(n):
        key, value = row[2 * j], row[2 * j + 1]
        assert key in keys, f"{key} is no key"
        assert value in values, f"{value} is no value"
        assert key not in memory, f"key {key} twice"
        memory[key] = value
    return memory


def read_mqar(row, *, n, vocab_size, name, **settings):
    keys, values, _ = tokens(name, vocab_size, **settings)
    memory = _pairs(row, n, keys, values)
    assert row[2 * n] == vocab_size - 1
    return {t: memory[row[t]] for t in range(2 * n + 1, len(row))}


def read_zoology(row, *, n, vocab_size, name, **_):
    keys, values, _ = tokens(name, vocab_size)
    memory = _pairs(row, n, keys, values)
    assert len(set(memory.values())) == n, "values are drawn without replacement"
    answers, asked = {}, []
    for t in range(2 * n, len(row)):
        if row[t] != 0:
            assert (t - 2 * n) % 2 == 0, "queries stand at even offsets"
            answers[t] = memory[row[t]]
            asked.append(row[t])
    assert sorted(asked) == sorted(memory), "each key is asked for once"
    return answers


def read_noisy(row, *, n, vocab_size, name, **settings):
    keys, values, filler = tokens(name, vocab_size, **settings)
    memory = _pairs(row, n, keys, values)
    t = 2 * n
    while row[t] != vocab_size - 1:
        assert row[t] in filler, f"{row[t]} is no filler"
        t += 1
    assert sorted(row[t + 1 :]) == sorted(memory), "the queries are a permutation of the keys"
    return {s: memory[row[s]] for s in range(t + 1, len(row))}


def read_copy(row, *, vocab_size, **_):
    content = []
    while row[len(content)] != vocab_size - 1:
        content.append(row[len(content)])
    start = len(content)
    assert start == len(row) // 2
    answers = {}
    for t in range(start, len(row)):
        answers[t] = content[t - start]
        # What was asked for at t is what comes next.
        assert t + 1 == len(row) or row[t + 1] == answers[t]
    assert len(answers) == len(content), "the whole content is asked for"
    return answers


def read_copy_identity(row, *, vocab_size, **_):
    start = row.index(vocab_size - 1)
    assert start == len(row) // 2
    for t in range(start + 1, len(row)):
        assert row[t] == row[t - start - 1], "what follows SEP is the content again"
    return {t: row[t] for t in range(start + 1, len(row))}


READERS = {
    "mqar": read_mqar,
    "mqar-disjoint": read_mqar,
    "mqar-ood": read_mqar,
    "mqar-zoology": read_zoology,
    "noisy-recall": read_noisy,
    "copy": read_copy,
    "copy-identity": read_copy_identity,
}


def read(name, row, settings):
    return READERS[name](row, name=name, **{key: value for key, value in settings.items() if key != "seq_len"})


def scored_count(name, settings):
    """Number of scored positions by the definition of each task."""
    length, n = settings["seq_len"], settings.get("n")
    if name in ("mqar", "mqar-disjoint", "mqar-ood"):
        return length - 2 * n - 1
    if name in ("mqar-zoology", "noisy-recall"):
        return n
    return length // 2 if name == "copy" else (length - 1) // 2
