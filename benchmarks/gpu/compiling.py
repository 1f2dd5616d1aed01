"""Compiles kernels before all timing, in parallel processes that fill Triton's compile cache."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.gpu import ROOT, forms

Job = tuple[str, int, int, str]  # form, heads, D, type
JOBS: dict[str, list[Job]] = {
    "speed": [(form, forms.HEADS, D, "bfloat16") for D in (128, 64) for form in (*forms.VARLA, *forms.PEERS)],
    "paper": [
        *((form, forms.HEADS, 128, "bfloat16") for form in forms.VARLA),
        *((form, 4, 32, "float32") for form in forms.VARLA),
    ],
    "linear": [(form, heads, 64, "bfloat16") for heads in (4, forms.HEADS) for form in forms.VARLA],
}


PARTS = {"DeltaNet": 2, "MesaNet": 4}  # processes that divide a peer's many configurations


def compile_one(job: Job, peers: str | None, part: int, parts: int) -> None:
    """Run a form once. Triton's autotuner tries only every `parts`-th configuration of each kernel."""
    choose_from(part, parts)
    os.environ["FLA_CACHE_RESULTS"] = "0"  # a peer chooses its configurations later, on an idle machine
    forms.see_peers(peers)
    form, heads, D, dtype = job
    forms.work(form, 8, 1024, heads, D, getattr(torch, dtype)).both()
    torch.cuda.synchronize()


def choose_from(part: int, parts: int) -> None:
    """From now on, Triton's autotuner uses only configurations part, part + parts, part + 2 parts, and so on."""
    from triton.runtime.autotuner import Autotuner

    make = Autotuner.__init__

    def make_part(self: Any, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self.configs = self.configs[part::parts] or self.configs[:1]

    Autotuner.__init__ = make_part


def compile_all(jobs: Sequence[Job], peers: str | None, limit: float = 180.0) -> None:
    """Fill Triton's cache on disk. A form that fails or takes too long here is compiled, or fails, when measured."""
    jobs = [job for job in dict.fromkeys(jobs) if peers or job[0] not in forms.PEERS]
    pieces = [(job, part, PARTS.get(job[0], 1)) for job in jobs for part in range(PARTS.get(job[0], 1))]
    script = "import json, sys; from benchmarks.gpu.compiling import compile_one; compile_one(*json.loads(sys.argv[1]))"
    start = time.perf_counter()
    running = []
    for job, part, parts in pieces:
        command = [sys.executable, "-W", "ignore", "-c", script, json.dumps([job, peers, part, parts])]
        running.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for (job, _, _), process in zip(pieces, running, strict=True):
        try:
            _, errors = process.communicate(timeout=max(1.0, limit - (time.perf_counter() - start)))
            if process.returncode:
                print(f"compiling {job}: {errors.decode(errors='replace').strip()[-200:]}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    if jobs:
        print(f"compiled {len(jobs)} forms in {time.perf_counter() - start:.0f} s", flush=True)
