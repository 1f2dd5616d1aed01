"""A million tokens through a small model on the CPU: `python -m benchmarks.streaming` writes results/streaming.json.

It measures memory and time per token, for reading and for decoding, after contexts of several lengths; softmax
attention is measured up to a shorter one. It also measures the peak memory of scoring a whole file as one context.
Every job runs in its own process, one after the other, so that each has its own peak.
"""

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure import medians, peak_resident, table, write
from varla.session.session import PIECE

LENGTHS = (1_000, 10_000, 100_000, 1_000_000)
SCORED = (*LENGTHS, 2_000_000)  # twice the last, to tell growth from noise of the allocator
SOFTMAX = 100_000  # most tokens for softmax attention, whose time grows quadratically
DECODED = 64  # a decoding time is the median over this many tokens
ROUNDS, SOFTMAX_ROUNDS = 20, 3  # a reading time is the median over this many pieces
MODEL = {
    "vocab_size": 259,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 256,
}


def build(mechanism: str) -> Any:
    from varla.models import VarlaConfig, VarlaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return VarlaForCausalLM(VarlaConfig(**MODEL, mechanisms=mechanism)).eval()


def stream(job: tuple[str, list[int]]) -> list[dict[str, Any]]:
    """Feed one session all lengths, then measure the times after each length, interleaved, so that they compare."""
    import varla

    mechanism, lengths = job
    session = varla.Session(build(mechanism))
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> Tensor:
        return torch.randint(3, 259, (count,), generator=generator)

    session.feed(tokens(2 * PIECE)).reset()  # so that allocations of the first calls do not count for a length
    rows, forks = [], []
    for length in lengths:
        while session.position < length:
            session.feed(tokens(min(PIECE, length - session.position)))
        row = {"tokens": length, "state bytes": session.nbytes, "peak resident MB": peak_resident() / 2**20}
        if mechanism != "softmax":  # a file of softmax attention would be as large as its cache
            with tempfile.TemporaryDirectory() as folder:
                session.save(Path(folder) / "state")
                row["file bytes"] = (Path(folder) / "state").stat().st_size
        rows.append(row)
        forks.append(session.fork())
        print(mechanism, json.dumps(row), flush=True)
    piece = tokens(PIECE)
    reading = {str(each.position): partial(lambda fork: fork.fork().feed(piece), each) for each in forks}
    rounds = ROUNDS if mechanism != "softmax" else SOFTMAX_ROUNDS
    per_piece = medians(reading, rounds)
    decoding = {str(each.position): partial(next, each.generate(seed=0, stop=())) for each in forks}
    per_token = medians(decoding, DECODED)
    for row in rows:
        row["microseconds a token, reading"] = 1e6 * per_piece[str(row["tokens"])] / PIECE
        row["microseconds a token, decoding"] = 1e6 * per_token[str(row["tokens"])]
    return rows


def score(length: int) -> dict[str, Any]:
    """Score a file of `length` bytes, one token each, as one context."""
    from varla.lm.streaming import score_stream
    from varla.lm.text import load_tokenizer
    from varla.session.text import encode, read_utf8

    draw = random.Random(0)
    words = ["".join(draw.choices("abcdefghij", k=draw.randint(2, 9))) for _ in range(1000)]
    model, tokenizer = build("vla"), load_tokenizer("bytes")
    with tempfile.TemporaryFile() as file:
        size = 0
        while size < length:
            line = (" ".join(draw.choices(words, k=12)) + "\n").encode()[: length - size]
            size += file.write(line)
        file.seek(0)
        start = time.perf_counter()
        found = score_stream(model, encode(read_utf8(file, "text"), tokenizer), [None], lambda: size)[None]
        seconds = time.perf_counter() - start
    row = {
        "tokens": length,
        "predicted": found.tokens,
        "microseconds a token": 1e6 * seconds / length,
        "peak resident MB": peak_resident() / 2**20,
    }
    print("score", json.dumps(row), flush=True)
    return row


def alone(function: Any, argument: Any) -> Any:
    """The function's result, computed in a new process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, (argument,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="up to 10 000 tokens; nothing is written")
    quick = parser.parse_args().quick
    lengths = [each for each in LENGTHS if not quick or each <= 10_000]
    model = build("vla")
    results: dict[str, Any] = {
        "model": {**MODEL, "parameters": sum(p.numel() for p in model.parameters()), "dtype": "float32", "threads": 1},
        "vla": alone(stream, ("vla", lengths)),
        "score": [alone(score, each) for each in SCORED if not quick or each <= 10_000],
        "softmax": alone(stream, ("softmax", [each for each in lengths if each <= SOFTMAX])),
    }
    for name in ("vla", "softmax", "score"):
        header = list(results[name][0])
        rows = [
            [f"{row[key]:.1f}" if isinstance(row[key], float) else str(row[key]) for key in header]
            for row in results[name]
        ]
        print(f"\n{name}\n{table(header, rows)}")
    if not quick:
        print("\nwritten:", write("streaming", results))


if __name__ == "__main__":
    main()
