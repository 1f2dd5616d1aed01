"""The speed section on made-up times: its tables, its goals, and a peer that fails."""

import sys
import types

from benchmarks.gpu import forms, speed
from benchmarks.gpu.record import Findings, Options


def test_speed_beside_peers_one_of_which_fails(fake, monkeypatch):
    called = []

    def delta(q, k, v, beta, use_qk_l2norm_in_kernel):
        assert beta.shape == q.shape[:3]
        called.append(use_qk_l2norm_in_kernel)
        return q + k + v + beta[..., None], None

    monkeypatch.setitem(sys.modules, "fake_delta", types.SimpleNamespace(chunk=delta))
    monkeypatch.setattr(forms, "PEERS", {"DeltaNet": ("fake_delta", "chunk"), "MesaNet": ("no_such_module", "chunk")})
    monkeypatch.setattr(forms, "SOFTMAX", {"SDPA": None})
    found = Findings()
    speed.run(found, Options())
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
    assert met["D=16 B=1 T=20, varla, no refresh, beyond inputs MB", "at most 250"]  # 200; 300 with the inputs
    assert not any("refresh 20" in goal and "B=1" in goal and "ms" in goal for goal, _ in met)
    assert not any("MesaNet" in goal for goal, _ in met)
