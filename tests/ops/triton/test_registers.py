"""The look for unwritten registers sees them, and nothing else: instructions as ptxas writes them."""

import pytest

pytest.importorskip("triton")

from tests.ops.triton.registers import unwritten


def sass(*instructions: str) -> str:
    return "\n".join(f"        /*{16 * i:04x}*/                   {each} ;" for i, each in enumerate(instructions))


def test_the_fault_of_ptxas_12_8() -> None:
    """As found: the low and the high half of a descriptor from one register, which is first written later."""
    found = unwritten(
        sass(
            "UIADD3 UR6, UP0, UR12, 0x20, URZ",
            "UIADD3.X UR7, UR12, -0x3ffffff0, URZ, UP0, !UPT",
            "ULDC.64 UR12, c[0x0][0x220]",
            "IADD3 R14, P0, R32, UR12, RZ",
        )
    )
    assert [each.partition(":")[0] for each in found] == ["0000", "0010"]


@pytest.mark.parametrize(
    "instructions",
    [
        ("UMOV UR4, URZ", "UIADD3.X UR7, UR4, -0x3ffffff0, URZ, UP0, !UPT"),
        ("ULDC.64 UR8, c[0x0][0x208]", "@P3 STG.E.U16 desc[UR8][R12.64], R11"),
        ("S2UR UR5, SR_CgaCtaId", "ULEA UR5, UR5, 0x400, 0x18", "STS [R4+UR5], R9"),
        ("UIADD3.64 UR22, UR30, 0x100, URZ",),
        ("R2UR UR6, R4", "R2UR UR7, R5", "HGMMA.64x64x16.F32.BF16 R24, R56, gdesc[UR4].tnspB, R24"),
    ],
)
def test_what_is_written_first_may_be_read(instructions: tuple[str, ...]) -> None:
    before = ("ULDC.64 UR30, c[0x0][0x208]",)
    assert unwritten(sass(*before, *instructions)) == []
    assert unwritten(sass(*instructions[-1:]))  # and what that reads is seen


def test_keeping_what_is_overwritten_is_no_use() -> None:
    assert unwritten(sass("MOV R128, UR55", "UMOV UR55, 0x1", "R2UR UR55, R128")) == []


@pytest.mark.parametrize("missing", [4, 5, 6, 7])
def test_both_descriptors_of_a_product(missing: int) -> None:
    """With both operands in shared memory, all four registers are read; with one of them, the last two."""
    made = tuple(f"UMOV UR{n}, 0x10" for n in range(4, 8) if n != missing)
    assert unwritten(sass(*made, "HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4], R24"))
    assert bool(unwritten(sass(*made, "HGMMA.64x64x16.F32.BF16 R24, R56, gdesc[UR4], R24"))) == (missing > 5)
