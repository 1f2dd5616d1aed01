"""What is timed gets the inputs it asks for."""

import sys
import types

import torch

from benchmarks.gpu import forms


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
    monkeypatch.setitem(forms.PEERS, "MesaNet", ("fake_mesa", "chunk"))
    x = forms.work("MesaNet", 2, 5, 3, 16)
    assert [grad.dtype for grad in x.both()] == [tensor.dtype for tensor in x.tensors]
