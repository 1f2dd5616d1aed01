"""Compiles the kernels that go token by token, as `compiling` does the others.

Run as a program, in a process without TRITON_INTERPRET: python -m tests.ops.triton.compiling_tokens ARCH TYPE D DV
REFRESH GAIN.
"""

import sys

import torch

from reproduction import sequential
from tests.ops.triton.compiling import report_launches
from varla.ops.fused.triton import decode
from varla.ops.fused.triton.decode import decode_, fade_
from varla.ops.memory.triton.recurrent import recurrent_triton
from varla.ops.state import VLAState
from varla.ops.vla import VLASettings


def main(arch: int, dtype: torch.dtype, D: int, DV: int, refresh: int | None, gain: str) -> None:
    report_launches(arch)
    decode.capability_of = lambda _: arch // 10  # type: ignore[assignment]
    sequential.cannot_launch = lambda *_, **__: None  # there is no GPU, and no matter
    B, H, T = 2, 2, 100
    settings = VLASettings(refresh_every=refresh, gain=gain)  # type: ignore[arg-type]
    state = VLAState.zeros({"B": B, "H": H, "D": D, "Dv": DV}, torch.float32, torch.device("cpu"))
    q, k, v, u = (torch.randn(B, T, H, d).to(dtype) for d in (D, D, DV, D))
    token, held = [x[:, 0] for x in (q, k, v, u)], (*state.tensors().values(), *settings.halves)
    decode_(*token, None, None, None, *held)
    decode_(*token, *(torch.zeros(B, H, 1, dtype=dtype) for _ in range(3)), *held)
    fade_(state.A, torch.zeros(B, H), state.t, torch.zeros(B, H, 1, dtype=dtype), settings.halves[0])
    sequential.vla_sequential(q, k, v, u, state, settings)
    S = state.S.requires_grad_()
    wide = [x.float().requires_grad_() for x in (q, k)]
    gate, beta = (torch.ones(B, T, H, *more).requires_grad_() for more in ((DV,), ()))
    calls = ((gate, None, True, False), (None, beta, True, True), (None, None, False, True), (gate, beta, True, True))
    for g, b, error, first in calls:
        o, *_ = recurrent_triton(*wide, v.requires_grad_(), g, b, S, state.t, None, error, first, True)
        o.sum().backward()


if __name__ == "__main__":
    arch, dtype, D, DV, refresh, gain = sys.argv[1:]
    main(int(arch), getattr(torch, dtype), int(D), int(DV), int(refresh) or None, gain)
