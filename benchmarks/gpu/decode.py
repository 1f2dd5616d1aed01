"""Section `decode`: the time of a token, and the share of the memory bandwidth that it uses."""

import inspect

import torch

import varla
from benchmarks.gpu import forms, timing
from benchmarks.gpu.record import Findings, Options


def run(found: Findings, options: Options) -> None:
    """Time one token for a batch of states. It must read and write S and A once each, at any position."""
    if "inplace" not in inspect.signature(varla.vla_step).parameters:
        found.notes.append("not measured: varla.vla_step has no `inplace`")
        return
    B, D, steps = 64, 128, 20
    q, k, v, u = (torch.randn(B, forms.HEADS, D, device=forms.DEVICE, dtype=torch.bfloat16) for _ in range(4))
    _, state = varla.vla(*(x[:, None] for x in (q, k, v, u)), return_state=True)
    traffic = 2 * (state.S.nbytes + state.A.nbytes)
    copy = timing.copy_rate(options.repeats)

    def step() -> object:
        with torch.no_grad():
            return varla.vla_step(q, k, v, u, state, inplace=True)  # type: ignore[call-arg, unused-ignore]

    eager = timing.timed(step, options.repeats)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            step()
    title = f"bf16, B={B} H={forms.HEADS} D={D}: {steps} tokens in a CUDA graph, {traffic / 1e6:.0f} MB of state each"
    latencies, rates = [], []
    for position in (0, 1_000, 1_000_000):
        state.t.fill_(position)
        us = 1e3 * timing.timed(graph.replay, options.repeats).ms / steps
        latencies.append(us)
        rates.append(traffic / us / 1e3)
        found.add(title, position=position, **{"us a token": us, "GB/s": rates[-1], "copy GB/s": copy})
    found.notes.append(f"without a graph: {1e3 * eager.ms:.1f} us a token, {1e3 * eager.host:.1f} us of it on the host")
    found.goal("state traffic over copy bandwidth", min(rates) / copy, least=0.5)
    found.goal("slowest position over quickest", max(latencies) / min(latencies), most=1.1)
