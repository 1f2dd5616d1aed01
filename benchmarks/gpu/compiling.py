"""Kernels compiled ahead of all timing, side by side on the host's cores: only the compile cache is kept."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence

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


def compile_one(job: Job, peers: str | None) -> None:
    os.environ["FLA_CACHE_RESULTS"] = "0"  # a peer's choice of configurations is made later, undisturbed
    forms.see_peers(peers)
    form, heads, D, dtype = job
    forms.work(form, 8, 1024, heads, D, getattr(torch, dtype)).both()
    torch.cuda.synchronize()


def compile_all(jobs: Sequence[Job], peers: str | None, limit: float = 150.0) -> None:
    """Fill Triton's cache on disk. What fails or takes too long here is compiled, or fails, when it is measured."""
    jobs = [job for job in dict.fromkeys(jobs) if peers or job[0] not in forms.PEERS]
    script = "import json, sys; from benchmarks.gpu.compiling import compile_one; compile_one(*json.loads(sys.argv[1]))"
    start = time.perf_counter()
    running = []
    for job in jobs:
        command = [sys.executable, "-W", "ignore", "-c", script, json.dumps([job, peers])]
        running.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for job, process in zip(jobs, running, strict=True):
        try:
            _, errors = process.communicate(timeout=max(1.0, limit - (time.perf_counter() - start)))
            if process.returncode:
                print(f"compiling {job}: {errors.decode(errors='replace').strip()[-200:]}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    if jobs:
        print(f"compiled {len(jobs)} forms in {time.perf_counter() - start:.0f} s", flush=True)
