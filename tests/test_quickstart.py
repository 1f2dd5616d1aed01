"""examples/quickstart.ipynb: its cells run in order in a new process, and what its text says of them holds."""

import json
import os
import subprocess
from pathlib import Path

from tests.warm import python

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]

# What a notebook does: all cells share their names, and the last expression of a cell is its result.
SCRIPT = """
import ast, json, sys
names = {}
for cell in json.loads(open(sys.argv[1], encoding="utf-8").read())["cells"]:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "quickstart.ipynb", "exec"), names)
        if last is not None:
            names["_"] = eval(compile(ast.Expression(last.value), "quickstart.ipynb", "eval"), names)
            if "Chart" in type(names["_"]).__name__:
                names["chart"] = names["_"].to_dict()
accuracies = {name: names["Run"](names["folder"] / name).record()["final"]["eval"] for name in ("vla", "linear")}
print(json.dumps({
    "accuracies": accuracies, "drawn": sorted({point["run"] for values in names["chart"]["datasets"].values()
    for point in values if "run" in point}), "written": names["written"], "text": names["text"],
}))
"""


def test_it_is_short_and_holds_no_outputs():
    assert 10 <= len(CELLS) <= 12
    code = [cell for cell in CELLS if cell["cell_type"] == "code"]
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"] is not None]
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)


def test_its_cells_run_in_order_and_show_what_they_say(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    command = [python(), "-c", SCRIPT, str(NOTEBOOK)]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["accuracies"]["vla"] > 0.85
    assert found["accuracies"]["linear"] < 0.75
    assert found["drawn"] == ["linear", "vla"]
    assert found["written"] == found["text"]
