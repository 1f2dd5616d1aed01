"""Cold starts: what is said of times and new cache files."""

from benchmarks.gpu import cold
from benchmarks.gpu.record import Findings


def test_cold_start_names_the_shapes_that_compile():
    compile(cold.COLD, "cold", "exec")
    found = Findings()
    cold.judge(found, 64, "vla", {"marks": [3.0, 18.0, 5.0], "files": 90, "new": {"B=1 T=1": 6, "B=2 T=9": 0}})
    assert [goal["met"] for goal in found.goals] == [False, False]
    assert found.goals[0]["found"] == 21
    assert found.notes == ["D=64: 6 new cache files for B=1 T=1"]
    cold.judge(found, 128, "gated vla", {"marks": [3.0, 9.0], "files": 90, "new": {}})
    assert found.goals[2]["goal"] == "D=128 gated vla: seconds to the first forward+backward"
    assert found.goals[2]["found"] == 12
