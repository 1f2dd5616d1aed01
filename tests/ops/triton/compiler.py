"""Runs the programs that compile kernels, each in a fork of one process that has imported all they need.

Importing PyTorch and Triton takes longer than compiling most kernels. Run as a program, in a process without
TRITON_INTERPRET: each line of its input is a JSON list, of a module's name and its arguments. The answer is one line,
JSON again: the program's exit status, its output and its errors.
"""

import json
import os
import runpy
import sys
import tempfile
import traceback

import torch._dynamo  # noqa: F401  the first call of an operator would import it, in every fork
from triton.runtime import cache

import tests.ops.triton.compiling  # noqa: F401  all that every program needs


def run(module: str, arguments: list[str]) -> int:
    """Run the module as a program; its exit status."""
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def answer(module: str, arguments: list[str]) -> tuple[int, str, str]:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if not child:
            os.dup2(output.fileno(), 1)
            os.dup2(errors.fileno(), 2)
            status = run(module, arguments)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (output, errors):
            file.seek(0)
        return status, output.read(), errors.read()


if __name__ == "__main__":
    if hasattr(cache, "triton_key"):
        cache.triton_key()  # a hash of all of Triton, which every fork would take again
    for line in sys.stdin:
        module, *arguments = json.loads(line)
        print(json.dumps(answer(module, arguments)), flush=True)
