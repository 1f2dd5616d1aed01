"""What compiled kernels take, recorded in recorded.json: compiling all of them keeps a processor busy for ten minutes.

A compiler is a function. Its arguments here are Triton's IR of the kernel, the options, the GPU and Triton's version,
and the key of a record is a digest of them all. The IR is taken without line numbers, and without the modules of the
functions in it. If one of them changes, there is no record, and the kernel is compiled. To record what the present
kernels take, without the entries of older ones:

    rm tests/ops/triton/recorded.json
    VARLA_RECORD_KERNELS=1 python -m pytest tests/ops/triton -k compil
"""

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import triton
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend

FILE = Path(__file__).with_name("recorded.json")
FRESH = "VARLA_COMPILE_KERNELS"  # set: the records are not read
RECORD = "VARLA_RECORD_KERNELS"  # set: what is compiled is recorded


def records() -> dict[str, dict[str, Any]]:
    """What is recorded, by key."""
    if not FILE.exists():
        return {}
    with FILE.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        found: dict[str, dict[str, Any]] = json.loads(file.read() or "{}")
        return found


def key(source: ASTSource, target: GPUTarget, options: dict[str, Any]) -> str:
    """Digest of all that a compiled kernel depends on."""
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    functions = backend.get_codegen_implementation(parsed)
    module = source.make_ir(target, parsed, functions, backend.get_module_map(), context)
    text = re.sub(r"\bvarla(\.[a-z_]+)+\.", "", module.str_nodebug())
    parts = (triton.__version__, str(target), parsed.hash(), text)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def recorded(
    source: ASTSource, target: GPUTarget, options: dict[str, Any], compile_kernel: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """What the kernel takes: as recorded, or as compile_kernel() finds it."""
    if FRESH in os.environ:
        return compile_kernel()
    digest = key(source, target, options)
    found = records().get(digest)
    if found is None:
        found = compile_kernel()
        if RECORD in os.environ:
            add(digest, found)
    return found


def add(digest: str, found: dict[str, Any]) -> None:
    """Write one more record. Other processes may do the same."""
    with FILE.open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        known = {**json.loads(file.read() or "{}"), digest: found}
        lines = (f"{json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
        file.truncate(0)
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
