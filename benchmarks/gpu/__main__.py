"""The GPU kernels: `python -m benchmarks.gpu` prints a table for each section and writes benchmarks/results/gpu.json.

Sections are independent: `--only speed` measures one, and does not change the others in the file. `--peers FOLDER`
names a folder with fla-core and einops unpacked. Times are medians by CUDA events after a warm-up. Without a git
checkout, VARLA_COMMIT names the commit. With `--quick`, sections without times also run in Triton's interpreter.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu.compiling import JOBS, compile_all
from benchmarks.gpu.record import Options, render
from benchmarks.gpu.sections import SECTIONS, refusal, run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of: {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="few repeats, shapes and lengths; nothing is written")
    parser.add_argument("--peers", help="folder with the peers' packages unpacked (fla-core, einops)")
    given = parser.parse_args(arguments)
    options = Options(given.quick, given.peers and str(Path(given.peers).resolve()))
    chosen = [name for name in SECTIONS if name in (given.only or SECTIONS)]
    refused = {name: reason for name in chosen if (reason := refusal(name, options.quick)) is not None}
    for name, reason in refused.items():
        print(f"{name}: skipped: {reason}")
    chosen = [name for name in chosen if name not in refused]
    compile_all([job for name in chosen for job in JOBS.get(name, [])], options.peers)
    errors = []
    for name in chosen:
        found = run(name, options)
        errors += [name] if found.error else []
        print(f"\n{render(name, found)}", flush=True)
    return 1 if refused or errors else 0


if __name__ == "__main__":
    sys.exit(main())
