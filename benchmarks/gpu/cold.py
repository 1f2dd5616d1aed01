"""Section `cold`: the time of the first call with an empty compile cache, and whether other shapes compile again."""

import json
import os
import subprocess
import sys
import tempfile
import time

from benchmarks.gpu import ROOT
from benchmarks.gpu.record import Findings, Options, Row

# It imports only what a user would import, so that a user sees the same time.
COLD = """
import sys, time
started, D = float(sys.argv[1]), int(sys.argv[2])
import json, os, torch, varla
def both(B, T, refresh_every, lengths=None):
    x = [torch.randn(B, T, 4, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(4)]
    cu_seqlens = None if lengths is None else torch.tensor([0, *lengths], device="cuda").cumsum(0)
    varla.vla(*x, refresh_every=refresh_every, cu_seqlens=cu_seqlens, backend="triton").sum().backward()
    torch.cuda.synchronize()
def files():
    return sum(len(names) for *_, names in os.walk(os.environ["TRITON_CACHE_DIR"]))
marks = [started, time.time()]
for period in (20, None):
    both(2, 1024, period)
    marks.append(time.time())
new, known = {}, files()
shapes = [(1, 1), (3, 17), (1, 64), (5, 300), (1, 1000), (4, 2048), (1, 16384), (1, 1000, (3, 0, 700, 297))]
for period in (20, None):
    for B, T, *lengths in shapes:
        both(B, T, period, *lengths)
        new[f"B={B} T={T} refresh {period}" + (" packed" if lengths else "")] = files() - known
        known = files()
print(json.dumps({"marks": [b - a for a, b in zip(marks, marks[1:])], "files": known, "new": new}))
"""


def run(found: Findings, options: Options) -> None:
    """Measure in new processes with an empty compile cache."""
    for D in (64,) if options.quick else (64, 128):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", COLD, str(time.time()), str(D)]
            surroundings = {**os.environ, "TRITON_CACHE_DIR": folder}
            done = subprocess.run(
                command, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=150, check=False
            )
        if done.returncode:
            found.notes.append(f"D={D}: {' '.join(done.stderr.split())[-300:]}")
            found.goal(f"D={D}: seconds to the first forward+backward", None, most=20)
            continue
        values = json.loads(done.stdout.splitlines()[-1])
        judge(found, D, values)
        found.keep()


def judge(found: Findings, D: int, values: Row) -> None:
    imports, first, more = values["marks"]
    new = {shape: count for shape, count in values["new"].items() if count}
    found.add(
        "seconds, bf16, H=4, from the start of a process with an empty compile cache",
        **{"D": D, "to imports": imports, "to first answer": imports + first, "more without refresh": more},
        **{"cache files": values["files"], "new with other B and T": sum(new.values())},
    )
    found.goal(f"D={D}: seconds to the first forward+backward", imports + first, most=20)
    found.goal(f"D={D}: cache files that other B and T add", float(sum(new.values())), most=0)
    found.notes += [f"D={D}: {count} new cache files for {shape}" for shape, count in new.items()]
