"""The GPU benchmark without a GPU: what it keeps, how it judges, and that its sections run, on made-up times."""

import json
import math
import sys
import types

import pytest
import torch

from benchmarks import gpu, measure

SMALL = {(16, 1, 20): ((1.0, 3.0), (2.0, 6.0)), (16, 8, 20): ((1.0, 3.0), (2.0, 6.0))}


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "RESULTS", tmp_path)
    return tmp_path / "gpu.json"


@pytest.fixture
def fake(monkeypatch):
    """Sections on the CPU: everything is called once, and takes as many milliseconds as it is told to."""
    pytest.importorskip("triton")
    clock = {"ms": 2.0}

    def timing(call, repeats=20):
        call()
        return gpu.Timing(clock["ms"], 0.1, 0.5)

    monkeypatch.setattr(gpu, "DEVICE", "cpu")
    monkeypatch.setattr(gpu, "HEADS", 1)
    monkeypatch.setattr(gpu, "timing", timing)
    monkeypatch.setattr(gpu, "peak_mb", lambda call: (300.0, 200.0))
    monkeypatch.setattr(gpu, "copy_rate", lambda repeats: 4000.0)
    monkeypatch.setattr(gpu, "SPEED", SMALL)
    monkeypatch.setattr(gpu, "PEAK_LIMIT", ((16, 1, 20), 250.0))
    return clock


def section(**columns):
    return gpu.Found(tables={"a title": [columns]})


def test_sections_measured_apart_end_up_together(results, monkeypatch):
    monkeypatch.setenv("VARLA_COMMIT", "abc")
    gpu.save("speed", section(ms=1.0))
    gpu.save("accuracy", section(error=2.0))
    gpu.save("speed", section(ms=3.0))
    kept = json.loads(results.read_text())
    assert list(kept["sections"]) == ["accuracy", "speed"]
    assert kept["sections"]["speed"]["tables"] == {"a title": [{"ms": 3.0}]}
    assert kept["machine"]["commit"] == kept["sections"]["speed"]["commit"] == "abc"
    assert kept["machine"]["torch"] == torch.__version__


def test_a_section_that_fails_is_reported_and_overwrites_nothing(results, monkeypatch):
    gpu.save("paper", section(ms=1.0))

    def broken(found, options):
        raise RuntimeError("no luck")

    monkeypatch.setitem(gpu.SECTIONS, "paper", broken)
    found = gpu.run("paper", gpu.Options())
    assert found.error == "RuntimeError: no luck"
    assert "FAILED: RuntimeError: no luck" in gpu.render("paper", found)
    assert json.loads(results.read_text())["sections"]["paper"]["error"] is None


def test_what_was_measured_before_a_failure_is_kept(results, monkeypatch):
    def halfway(found, options):
        found.add("a title", ms=1.0)
        raise RuntimeError("no luck")

    monkeypatch.setitem(gpu.SECTIONS, "paper", halfway)
    gpu.run("paper", gpu.Options(quick=True))
    assert not results.exists()
    gpu.run("paper", gpu.Options())
    kept = json.loads(results.read_text())["sections"]["paper"]
    assert kept["error"] == "RuntimeError: no luck"
    assert kept["tables"] == {"a title": [{"ms": 1.0}]}


@pytest.mark.parametrize(
    ("value", "limits", "is_met"),
    [
        (1.0, {"most": 1.0}, True),
        (1.1, {"most": 1.0}, False),
        (300.0, {"least": 300}, True),
        (299.0, {"least": 300}, False),
        (None, {"most": 1.0}, False),
        (math.nan, {"most": 1.0}, False),
        (math.nan, {"least": 1.0}, False),
    ],
)
def test_goals(value, limits, is_met):
    found = gpu.Found()
    found.goal("speed", value, **limits)
    assert found.goals[0]["met"] is is_met
    assert ("yes" if is_met else "NO") in gpu.render("speed", found)


def test_tables_have_every_column_of_every_row():
    found = gpu.Found(tables={"times": [{"form": "a", "ms": 1234.5}, {"form": "b", "error": "none"}]})
    header, _, first, second = gpu.render("speed", found).splitlines()[3:7]
    assert header.split() == ["form", "ms", "error"]
    assert first.split() == ["a", "1234", "-"]
    assert second.split() == ["b", "-", "none"]


@pytest.mark.parametrize(
    ("ours", "theirs", "tokens"),
    [
        ([4, 4, 4], [1, 4, 16], 2000),
        ([2, 2, 2], [1, 4, 16], 1000 * math.sqrt(2)),
        ([1, 1, 1], [2, 2, 2], 1000),
        ([3, 3, 3], [1, 1, 1], None),
        ([1, 3, 1], [2, 2, 2], 2000 * 2 ** (math.log(1.5) / math.log(3))),
    ],
)
def test_crossover(ours, theirs, tokens):
    found = gpu.crossover([1000, 2000, 4000], ours, theirs)
    assert found == (None if tokens is None else pytest.approx(tokens))


def checked(dtype, **errors):
    return {"case": f"{dtype} {errors}", "type": dtype, "errors": errors, "same bits": True, "NaN": 0}


def test_the_worst_of_each_type():
    rows = [checked("float32", o=1e-6, dq=1e-5), checked("float32", o=3e-6, dq=2e-6), checked("bfloat16", o=1e-3)]
    single, half, other = gpu.worst(rows)
    assert (single["outputs"], single["gradients"], single["cases"]) == (3e-6, 1e-5, 2)
    assert single["worst"] == f"dq at {rows[0]['case']}"
    assert (half["gradients"], other["worst"]) == (None, None)


def test_nan_is_worse_than_any_error_and_meets_no_goal():
    rows = [checked("float32", o=1e-6, dq=1.0), checked("float32", o=1e-6, dq=math.nan)]
    assert math.isnan(gpu.worst(rows)[0]["gradients"])
    goals = {goal["goal"]: goal["met"] for goal in gpu.accuracy_goals(rows)}
    assert goals["float32, outputs"]
    assert not goals["float32, gradients"]


def test_a_case_that_failed_meets_no_goal():
    rows = [checked("float32", o=1e-6, dq=1e-6), {"case": "x", "type": "float32", "error": "no luck"}]
    assert not any(goal["met"] for goal in gpu.accuracy_goals(rows))


def test_the_cases_are_many_and_different():
    cases = gpu.cases(quick=False)
    assert len({str(case) for case in cases}) == len(cases) >= 30
    assert {case.D for case in cases} == {16, 32, 48, 64, 96, 128}
    assert max(case.T for case in cases) == 65536
    assert all(sum(case.lengths) == case.T for case in cases if case.lengths)
    assert {case.keys for case in cases} == {"random", "near", "same"}


def test_the_checks_see_an_error_other_bits_and_unwritten_memory(monkeypatch):
    pytest.importorskip("triton")
    case = gpu.Case(1, 5, 1, 16)
    good = gpu.check_case(case, "float32", 0)
    assert "error" not in good, good["error"]
    assert max(good["errors"].values()) < 2e-5
    assert good["same bits"]
    assert good["NaN"] == 0

    true = gpu.results_of

    def wrong(case, given, backend, device, dtype=None):
        found = true(case, given, "chunk", device, dtype)
        if backend == "triton":
            found["o"] = found["o"] + torch.rand(1)
            found["dq"] = torch.empty_like(found["dq"])
        return found

    monkeypatch.setattr(gpu, "results_of", wrong)
    bad = gpu.check_case(case, "float32", 0)
    assert bad["errors"]["o"] > 2e-5
    assert not bad["same bits"]
    assert bad["NaN"] >= 5 * 16


def test_speed_beside_peers_one_of_which_fails(fake, monkeypatch):
    called = []

    def delta(q, k, v, beta, use_qk_l2norm_in_kernel):
        assert beta.shape == q.shape[:3]
        called.append(use_qk_l2norm_in_kernel)
        return q + k + v + beta[..., None], None

    monkeypatch.setitem(sys.modules, "fake_delta", types.SimpleNamespace(chunk=delta))
    monkeypatch.setattr(gpu, "PEERS", {"DeltaNet": ("fake_delta", "chunk"), "MesaNet": ("no_such_module", "chunk")})
    monkeypatch.setattr(gpu, "SOFTMAX", {"SDPA": None})
    found = gpu.Found()
    gpu.speed(found, gpu.Options())
    (rows,) = found.tables.values()
    assert called
    assert [row["form"] for row in rows] == 2 * [
        "varla, no refresh",
        "varla, refresh 20",
        "SDPA",
        "DeltaNet",
        "MesaNet",
    ]
    assert all(row["forward ms / DeltaNet"] == 1 for row in rows if "error" not in row)
    assert [row["error"][:19] for row in rows if "error" in row] == 2 * ["ModuleNotFoundError"]
    met = {(goal["goal"], goal["limit"]): goal["met"] for goal in found.goals}
    assert not met["D=16 B=1 T=20, varla, no refresh, forward ms, goal", "at most 1"]
    assert met["D=16 B=1 T=20, varla, no refresh, forward ms, least", "at most 2"]
    assert met["D=16 B=8 T=20, varla, refresh 20, forward ms, goal", "at most 2"]  # twice the goal
    assert met["D=16 B=1 T=20, varla, no refresh, forward ms / DeltaNet", "at most 1"]
    assert not met["D=16 B=1 T=20, varla, no refresh, peak MB", "at most 250"]
    assert not any("refresh 20" in goal and "B=1" in goal and "ms" in goal for goal, _ in met)
    assert not any("MesaNet" in goal for goal, _ in met)


def test_mesa_net_gets_its_gates_in_float32(fake, monkeypatch):
    def mesa(q, k, v, g, beta, lamb, use_qk_l2norm_in_kernel):
        assert g.shape == beta.shape == q.shape[:3]
        assert lamb.shape == q.shape[2:]
        assert {g.dtype, beta.dtype, lamb.dtype} == {torch.float32}
        assert g.max() < 0
        assert beta.min() > 0
        assert lamb.min() > 0.25
        o = q + k + v + (g + beta)[..., None] * lamb
        return o.to(q.dtype), None, None

    monkeypatch.setitem(sys.modules, "fake_mesa", types.SimpleNamespace(chunk=mesa))
    monkeypatch.setitem(gpu.PEERS, "MesaNet", ("fake_mesa", "chunk"))
    x = gpu.work("MesaNet", 2, 5, 3, 16)
    assert [grad.dtype for grad in x.both()] == [tensor.dtype for tensor in x.tensors]


def test_the_loop_is_held_against_the_kernels(fake, monkeypatch):
    monkeypatch.setattr(gpu, "once", lambda call: 599.0)
    monkeypatch.setattr(gpu.Work, "both", lambda self: None)
    found = gpu.Found()
    gpu.loop(found, gpu.Options(quick=True))
    (rows,) = found.tables.values()
    assert [row["speed-up"] for row in rows] == [299.5] * 4
    assert not any(goal["met"] for goal in found.goals)


def test_decode_says_why_it_is_not_measured(monkeypatch):
    monkeypatch.setattr("varla.vla_step", lambda q, k, v, u, state: None)
    found = gpu.Found()
    gpu.decode(found, gpu.Options())
    assert not found.tables
    assert found.notes == ["not measured: varla.vla_step has no `inplace`"]


def test_cold_start_names_the_shapes_that_compile():
    compile(gpu.COLD, "cold", "exec")
    found = gpu.Found()
    gpu.cold_found(found, 64, {"marks": [3.0, 18.0, 5.0], "files": 90, "new": {"B=1 T=1": 6, "B=2 T=9": 0}})
    assert [goal["met"] for goal in found.goals] == [False, False]
    assert found.goals[0]["found"] == 21
    assert found.notes == ["D=64: 6 new cache files for B=1 T=1"]


def test_without_a_gpu_nothing_is_timed(results, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert gpu.main(["--only", "speed", "cold"]) == 1
    said = capsys.readouterr().out
    assert "speed: skipped: it measures time on a CUDA GPU" in said
    assert "cold: skipped" in said
    assert not results.exists()


def test_unknown_sections_are_refused(capsys):
    with pytest.raises(SystemExit):
        gpu.main(["--only", "fast"])
    assert "invalid choice: 'fast'" in capsys.readouterr().err
