"""docs/math.md: the numbers it quotes from the reproduction are those of the records."""

from pathlib import Path

from reproduction import records
from reproduction.items import gradients
from reproduction.runs import FULL
from tests.reproduction.fabricate import claim

ROOT = Path(__file__).parent.parent
TEXT = " ".join((ROOT / "docs/math.md").read_text().split())


def test_the_growth_of_gradients_is_that_of_the_records():
    found = claim(gradients.ITEM, "P13-gradient-bound").judge(records.load(ROOT / "reports", "full"), FULL)
    assert found.verdict == "false"
    assert f"a product of them can be above 1 as well ({found.ours:.2f} measured)" in TEXT
