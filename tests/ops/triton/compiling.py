"""Compiles every kernel that a call would launch, for a GPU that need not be there, and reports what each one takes.

Run as a program, in a process without TRITON_INTERPRET: python -m tests.ops.triton.compiling ARCH TYPE D DV REFRESH
[GATES]. Prints one JSON object for each kernel. The host code runs as it is, on CPU tensors; only the launch is
replaced.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.ops.triton.recorded import recorded
from tests.ops.triton.registers import disassembled, faults
from varla.ops.fused.triton.op import VLALauncher, vla_triton
from varla.ops.state import ForgettingState
from varla.ops.triton import op
from varla.ops.triton.launcher import Precision, Shape
from varla.ops.triton.plan import make_plan, span_length
from varla.ops.vla import VLASettings

POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


def source(kernel: Any, arguments: dict[str, Any]) -> ASTSource:
    """The kernel with the types and divisibilities that a launch with these arguments would find."""
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for index, parameter in enumerate(kernel.params):
        name, value = parameter.name, arguments[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1 and not parameter.do_not_specialize):
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name], attributes[index,] = POINTERS[value.dtype], [["tt.divisibility", 16]]
        elif isinstance(value, float):
            signature[name] = "fp32"
        else:
            signature[name] = "i32"
            if value % 16 == 0:
                attributes[index,] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


def report(kernel: Any, arguments: dict[str, Any], arch: int, options: dict[str, int]) -> dict[str, Any]:
    called, target = source(kernel, arguments), GPUTarget("cuda", arch, 32)
    takes = recorded(called, target, options, lambda: measured(called, target, options))
    return {"kernel": kernel.__name__, **takes, **options}


def measured(called: ASTSource, target: GPUTarget, options: dict[str, int]) -> dict[str, Any]:
    """Shared memory, registers and stack of the compiled kernel, and where ptxas went wrong (registers.py)."""
    compiled = triton.compile(called, target=target, options=options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        usage = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    taken = {name.lower(): int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", usage)}
    # The faults are in descriptors of wgmma's operands: where there is no wgmma, there is nothing to find.
    found = faults(disassembled(compiled.asm["cubin"])) if "wgmma" in compiled.asm["ptx"] else []
    return {"shared": compiled.metadata.shared, "faults": found, **taken}


def report_launches(arch: int) -> None:
    """From now on a launch compiles its kernel for `arch`, and prints what it takes."""

    def launch(self: Any, *values: Any, grid: Any, warmup: bool, **named: Any) -> None:
        options = {name: named.pop(name) for name in ("num_warps", "num_stages", "maxnreg") if name in named}
        if strangers := named.keys() - set(self.arg_names):
            raise TypeError(f"{self.__name__} has no {sorted(strangers)}; the interpreter would not mind, a GPU does")
        found = report(self, {**dict(zip(self.arg_names, values, strict=False)), **named}, arch, options)
        print(json.dumps(found), flush=True)

    triton.runtime.jit.JITFunction.run = launch


def main(arch: int, dtype: torch.dtype, D: int, DV: int, refresh: int | None, gates: Sequence[str]) -> None:
    report_launches(arch)
    H, T = 2, 1100  # few heads and many spans: with refresh, too, they are walked at once
    own = {"feature_map": "identity", "normalizer": False} if gates else {}
    settings = VLASettings(refresh_every=refresh, **own)  # type: ignore[arg-type]
    x = [torch.randn(1, T, H, size).to(dtype).requires_grad_() for size in (D, D, DV, D)]
    x += [torch.zeros(1, T, H, 1, dtype=dtype, requires_grad=True) for _ in gates]
    precision = Precision.of(dtype, D, interpreted=False)
    plan = make_plan((T,), span_length(T, H), torch.device("cpu"))
    shape = Shape.of(H, D, DV, precision.buffer, arch // 10)
    along, held = settings.halves
    launcher = VLALauncher(plan, shape, precision, along, held, given=frozenset(gates))
    op.launcher_for = lambda *_: launcher  # type: ignore[assignment]
    state = ForgettingState.zeros({"B": 1, "H": H, "D": D, "Dv": DV}, torch.float32, torch.device("cpu"))
    f = state.f if "forget" in gates else None
    missing = [None] * (8 - len(x))
    o, *_ = vla_triton(*x, *missing, state.S, state.A, state.z, f, state.t, None, along, held, True)
    o.sum().backward()


if __name__ == "__main__":
    arch, dtype, D, DV, refresh, *gates = sys.argv[1:]
    main(int(arch), getattr(torch, dtype), int(D), int(DV), int(refresh) or None, gates)
