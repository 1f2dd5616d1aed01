"""`python -m tests.fuzz`: many tries of every kind. Exit code 1 if there was a find."""

import argparse
import faulthandler
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Some virtual machines announce AMX and then refuse its instructions.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import torch

from tests.fuzz.core import run
from tests.fuzz.kinds import KINDS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--tries", type=int, default=1000, help="tries of each kind (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first try (default: 0)")
    parser.add_argument("--only", choices=KINDS, action="append", help="a kind; may be repeated (default: all)")
    options = parser.parse_args()
    faulthandler.enable()  # a crash names the line
    torch.set_num_threads(1)
    finds = 0
    for kind in options.only or KINDS:
        with tempfile.TemporaryDirectory() as folder:
            begin = time.monotonic()
            found = run(kind, KINDS[kind](Path(folder)), options.tries, options.seed, options.first)
        print(f"{found}\n  {time.monotonic() - begin:.0f} s", flush=True)
        finds += len(found.finds)
    return 1 if finds else 0


if __name__ == "__main__":
    sys.exit(main())
