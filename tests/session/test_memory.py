"""Memory stays flat: two hundred thousand tokens through a small model on the CPU, and a state file of one size."""

import json
import subprocess
import sys

import pytest

SCRIPT = """
import itertools, json, sys, pathlib
import torch
import varla
from benchmarks.measure import peak_resident
from tests.session.cases import tiny

torch.set_num_threads(1)
file = pathlib.Path(sys.argv[1])
session, found = varla.Session(tiny(num_hidden_layers=1, num_attention_heads=1)), []
tokens = itertools.cycle(range(3, 259))
for count in (1_000, 20_000, 200_000):
    session.feed(itertools.islice(tokens, count - session.position))
    session.save(file)
    found.append([session.position, peak_resident(), session.nbytes, file.stat().st_size])
print(json.dumps(found))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak is read from /proc")
def test_memory_and_file_stay_the_same_from_one_to_two_hundred_thousand_tokens(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "state")]
    first, warm, last = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [first[0], warm[0], last[0]] == [1_000, 20_000, 200_000]
    assert last[1] - warm[1] < 4 * 2**20
    assert first[2:] == warm[2:] == last[2:]
