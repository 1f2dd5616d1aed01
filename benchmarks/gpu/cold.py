"""Section `cold`: the time of the first call with an empty compile cache, and whether other shapes compile again."""

import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import product

from benchmarks.gpu import ROOT
from benchmarks.gpu.record import Findings, Options, Row

# It imports only what a user would import, so that a user sees the same time.
COLD = """
import sys, time
started, D, gated = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "gated vla"
import json, os, torch, varla
KINDS = {"refresh 20": {"refresh_every": 20}, "refresh None": {"refresh_every": None}}
if gated:
    features = {"feature_map": "silu", "normalize_query": True, "scale": None, "normalizer": False}
    KINDS = {"gates": {"refresh_every": None, "forget_at": "beat", "beat": 256, **features}}
def both(B, T, options, lengths=None):
    def random(*shape):
        return torch.randn(B, T, 4, *shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    x = [random(D) for _ in range(4)]
    cu_seqlens = None if lengths is None else torch.tensor([0, *lengths], device="cuda").cumsum(0)
    gates = {"beta": random().sigmoid(), "decay": -random().sigmoid(), "strength": random().sigmoid()} if gated else {}
    if gated:
        gates["forget"] = gates["decay"]
    varla.vla(*x, **gates, **options, cu_seqlens=cu_seqlens).sum().backward()
    torch.cuda.synchronize()
def files():
    return sum(len(names) for *_, names in os.walk(os.environ["TRITON_CACHE_DIR"]))
marks = [started, time.time()]
for options in KINDS.values():
    both(2, 1024, options)
    marks.append(time.time())
new, known = {}, files()
shapes = [(1, 1), (3, 17), (1, 64), (5, 300), (1, 1000), (4, 2048), (1, 16384), (1, 1000, (3, 0, 700, 297))]
for name, options in KINDS.items():
    for B, T, *lengths in shapes:
        both(B, T, options, *lengths)
        new[f"B={B} T={T} {name}" + (" packed" if lengths else "")] = files() - known
        known = files()
print(json.dumps({"marks": [b - a for a, b in zip(marks, marks[1:])], "files": known, "new": new}))
"""
FORMS = ("vla", "gated vla")


def run(found: Findings, options: Options) -> None:
    """Measure in new processes with an empty compile cache."""
    for D, form in product((64,) if options.quick else (64, 128), FORMS):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", COLD, str(time.time()), str(D), form]
            surroundings = {**os.environ, "TRITON_CACHE_DIR": folder}
            done = subprocess.run(
                command, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=150, check=False
            )
        if done.returncode:
            found.notes.append(f"{named(D, form)}: {' '.join(done.stderr.split())[-300:]}")
            found.goal(f"{named(D, form)}: seconds to the first forward+backward", None, most=20)
            continue
        judge(found, D, form, json.loads(done.stdout.splitlines()[-1]))
        found.keep()


def named(D: int, form: str) -> str:
    return f"D={D}" if form == "vla" else f"D={D} {form}"


def judge(found: Findings, D: int, form: str, values: Row) -> None:
    imports, first, *more = values["marks"]
    new = {shape: count for shape, count in values["new"].items() if count}
    found.add(
        "seconds, bf16, H=4, from the start of a process with an empty compile cache",
        **{"D": D, "form": form, "to imports": imports, "to first answer": imports + first},
        **{"more without refresh": sum(more), "cache files": values["files"]},
        **{"new with other B and T": sum(new.values())},
    )
    found.goal(f"{named(D, form)}: seconds to the first forward+backward", imports + first, most=20)
    found.goal(f"{named(D, form)}: cache files that other B and T add", float(sum(new.values())), most=0)
    found.notes += [f"{named(D, form)}: {count} new cache files for {shape}" for shape, count in new.items()]
