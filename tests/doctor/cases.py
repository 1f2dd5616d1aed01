"""Faults to be found, and outcomes that were never computed."""

import torch

import varla
from varla.doctor.checks import OPERATOR, Check, Outcome
from varla.doctor.operators import Shape
from varla.ops.chunk.op import ChunkOperator

SMALL = Shape(8, 6, lengths=(3, 0, 9), state=True)
CHUNK = Check("cpu", OPERATOR, "delta_rule", "chunk", "float32", SMALL)
REFERENCE = Check("cpu", OPERATOR, "delta_rule", "reference", "float32", SMALL)
FINE = Outcome(REFERENCE, {"o": 1e-7, "d q": 2e-6}, seconds=0.5)
OFF = Outcome(CHUNK, {"o": 1e-7, "d q": 1e-2}, seconds=0.5)


def off_by_a_percent(monkeypatch):
    """Every chunk form returns outputs that are 1% too large."""
    right = ChunkOperator.__call__

    def wrong(self, *arguments):
        o, held = right(self, *arguments)
        return o + 0.01 * o.detach(), held

    monkeypatch.setattr(ChunkOperator, "__call__", wrong)


class Steeper(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return 1.01 * grad


def gradient_off_by_a_percent(monkeypatch):
    """The chunk form of the delta rule returns a gradient of its keys that is 1% too large."""
    right = varla.delta_rule

    def wrong(q, k, v, beta, backend, **options):
        return right(q, Steeper.apply(k) if backend == "chunk" else k, v, beta, backend=backend, **options)

    monkeypatch.setattr(varla, "delta_rule", wrong)


def raising(monkeypatch):
    """The chunk forms raise."""

    def wrong(self, *arguments):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCompile with ...")

    monkeypatch.setattr(ChunkOperator, "__call__", wrong)
