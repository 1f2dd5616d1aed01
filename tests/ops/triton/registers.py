"""Looks through a compiled kernel for descriptors of operands in shared memory that ptxas computes wrongly.

ptxas 12.8, which comes with Triton 3.6, does it in two ways: it reads a uniform register that nothing has written, or
it computes both halves of a descriptor from the register of its low half. The operand's address is then wrong: wrong
results, or an illegal memory access, and not every time.

To look with another version of Triton, unpack its wheel, and run tests.ops.triton.compiling with that folder in
PYTHONPATH and VARLA_COMPILE_KERNELS=1.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterator

import triton

INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)\s*(.*?)\s*;")
UNIFORM = re.compile(r"(gdesc\[|desc\[|c\[|)UR(\d+)")
WRITING = ("R2UR", "S2UR", "CS2UR", "REDUX")  # beside those whose names begin with U
NOT_WRITING = ("UISETP", "UPLOP3", "UBLKCP", "UTMALDG", "UTMASTG")  # of those: they write predicates, or memory


def disassembled(cubin: bytes) -> str:
    """The kernel's instructions as text."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [triton.knobs.nvidia.nvdisasm.path, "-c", "-ndf", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def faults(sass: str) -> list[str]:
    """Instructions that are wrong in one of the two ways."""
    return unwritten(sass) + from_one_half(sass)


def from_one_half(sass: str) -> list[str]:
    """Instructions that add the high half of a constant, with carry, to a register to which the low half was added."""
    carried: dict[str, set[str]] = {}  # by predicate, the registers to which a low half was added, while unchanged
    found = []
    for address, operation, operands in INSTRUCTION.findall(sass):
        parts = [each.strip().removesuffix(".reuse") for each in operands.split(",")]
        constant = any(re.match(r"-?0x", each) for each in parts)
        if operation in ("IADD3.X", "UIADD3.X") and constant:
            before = set().union(*(carried.get(each, set()) for each in parts))
            found += [f"{address}: {operation} {operands}"] if before & set(parts[1:]) else []
        for registers in carried.values():
            registers.discard(parts[0])
        if operation in ("IADD3", "UIADD3") and re.match(r"U?P\d", parts[1]):
            carried[parts[1]] = {each for each in parts[2:] if re.match(r"U?R\d", each)} if constant else set()
    return found


def unwritten(sass: str) -> list[str]:
    """Instructions that read a uniform register which none before them, in the order of addresses, writes.

    What only a later instruction writes, of a loop say, is unwritten the first time. A move to another register is no
    use: it is how ptxas keeps what it is about to overwrite, whether or not anything is in it.
    """
    written: set[int] = set()
    found = []
    for address, operation, operands in INSTRUCTION.findall(sass):
        reads, writes = _uses(operation, [each.strip() for each in operands.split(",")])
        if reads - written and operation != "MOV":
            found.append(f"{address}: {operation} {operands}")
        written |= writes
    return found


def _uses(operation: str, operands: list[str]) -> tuple[set[int], set[int]]:
    """Uniform registers that an instruction reads and writes."""
    name, *modifiers = operation.split(".")
    writing = name in WRITING or (name.startswith("U") and name not in NOT_WRITING)
    reads: set[int] = set()
    writes: set[int] = set()
    for place, operand in enumerate(operands):
        for kind, number in _registers(operand):
            if kind == "gdesc[":  # two descriptors, of which the first is idle where the left operand is in registers
                left = any(re.match(r"R\d", each) for each in operands[1:place])
                reads |= set(range(number + 2 if left else number, number + 4))
            elif kind == "desc[":
                reads |= {number, number + 1}
            elif place == 0 and writing:
                writes |= {number, number + 1} if {"64", "WIDE"} & set(modifiers) else {number}
            else:
                reads |= {number, number + 1} if "64" in modifiers and name.startswith("U") else {number}
    if name == "VOTEU":  # its predicate comes first
        writes, reads = writes | reads, set()
    return reads, writes


def _registers(operand: str) -> Iterator[tuple[str, int]]:
    for kind, number in UNIFORM.findall(operand):
        yield kind, int(number)
