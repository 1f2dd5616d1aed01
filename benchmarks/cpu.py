"""Speed and memory of the CPU forms: `python -m benchmarks.cpu` prints tables and writes benchmarks/results/cpu.json.

Times are medians of interleaved calls; compare only ratios within one run. The goals are printed beside them.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import varla
from benchmarks.measure import medians, peak_bytes, table, write
from varla.ops.dispatch import default_chunk_size

B, H, D = 1, 4, 32
Forms = dict[str, Callable[..., Tensor]]


def inputs(T: int, d: int = D) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(B, T, H, d, generator=generator, requires_grad=True) for _ in range(4)]


def softmax(q: Tensor, k: Tensor, v: Tensor, u: Tensor) -> Tensor:
    """Causal softmax attention, in its fastest layout: [B, H, T, D] contiguous."""
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def forward(form: Callable[..., Tensor], tensors: list[Tensor]) -> Callable[[], None]:
    def call() -> None:
        with torch.no_grad():
            form(*tensors)

    return call


def forward_backward(form: Callable[..., Tensor], tensors: list[Tensor]) -> Callable[[], object]:
    grad = torch.randn_like(tensors[2])

    def call() -> object:
        return torch.autograd.grad(form(*tensors), tensors, grad, allow_unused=True)

    return call


def chunk(q: Tensor, k: Tensor, v: Tensor, u: Tensor) -> Tensor:
    o: Tensor = varla.vla(q, k, v, u, backend="chunk")
    return o


def chunk_without_refresh(q: Tensor, k: Tensor, v: Tensor, u: Tensor) -> Tensor:
    o: Tensor = varla.vla(q, k, v, u, backend="chunk", refresh_every=None)
    return o


def reference(q: Tensor, k: Tensor, v: Tensor, u: Tensor) -> Tensor:
    o: Tensor = varla.vla(q, k, v, u, backend="reference")
    return o


def linear_attention(q: Tensor, k: Tensor, v: Tensor, u: Tensor) -> Tensor:
    o: Tensor = varla.linear_attention(q, k, v, backend="chunk")
    return o


def delta_rule(q: Tensor, k: Tensor, v: Tensor, u: Tensor) -> Tensor:
    o: Tensor = varla.delta_rule(q, k, v, u[..., 0].sigmoid(), backend="chunk")
    return o


def transposed(tensors: list[Tensor]) -> list[Tensor]:
    return [x.detach().transpose(1, 2).contiguous().requires_grad_() for x in tensors]


def against_the_loop(T: int, rounds: int) -> dict[str, Any]:
    """Times of the chunk form, the reference loop and softmax attention, in one run."""
    forms: Forms = {
        "reference": reference,
        "chunk": chunk,
        "chunk, no refresh": chunk_without_refresh,
        "linear attention": linear_attention,
        "delta rule": delta_rule,
        "softmax": softmax,
    }
    x = inputs(T)
    arguments = {name: transposed(x) if name == "softmax" else x for name in forms}
    ahead = medians({name: forward(form, arguments[name]) for name, form in forms.items()}, rounds)
    both = medians({name: forward_backward(form, arguments[name]) for name, form in forms.items()}, rounds)
    return {
        "T": T,
        "milliseconds": {name: {"forward": 1e3 * ahead[name], "forward+backward": 1e3 * both[name]} for name in forms},
        "speed-up over the reference": {
            name: {
                "forward": ahead["reference"] / ahead[name],
                "forward+backward": both["reference"] / both[name],
            }
            for name in forms
        },
        "chunk forward over softmax forward": ahead["chunk"] / ahead["softmax"],
    }


def scaling(lengths: list[int], rounds: int) -> list[dict[str, Any]]:
    """Time per token, and its ratio to softmax attention, for growing T."""
    rows = []
    for T in lengths:
        x = inputs(T)
        y = transposed(x)
        times = medians(
            {
                "chunk": forward(chunk, x),
                "softmax": forward(softmax, y),
                "chunk both": forward_backward(chunk, x),
            },
            rounds,
        )
        rows.append(
            {
                "T": T,
                "microseconds a token, forward": 1e6 * times["chunk"] / T,
                "microseconds a token, forward+backward": 1e6 * times["chunk both"] / T,
                "forward over softmax": times["chunk"] / times["softmax"],
            }
        )
    return rows


def memory(shapes: list[tuple[int, int]]) -> list[dict[str, Any]]:
    """Peak memory of forward+backward beyond the inputs; also without the chunk states, over the inputs' size."""
    rows = []
    for T, d in shapes:
        x = inputs(T, d)
        n = default_chunk_size(d)
        states = B * H * -(-T // n) * (2 * d * d + d) * 4
        size = sum(tensor.nbytes for tensor in x)
        peak = peak_bytes(forward_backward(chunk, x))
        rows.append(
            {
                "T": T,
                "D": d,
                "chunk": n,
                "inputs MB": size / 2**20,
                "states MB": states / 2**20,
                "peak MB": peak / 2**20,
                "(peak - states) / inputs": (peak - states) / size,
            }
        )
    return rows


def short(lengths: list[int], rounds: int) -> list[dict[str, Any]]:
    """Up to which length the loop is faster than the chunk form. `dispatch.LOOP_TOKENS` follows from it."""
    rows = []
    for T in lengths:
        x = inputs(T)
        times = medians({"chunk": forward(chunk, x), "reference": forward(reference, x)}, rounds)
        rows.append({"T": T, "chunk over reference, forward": times["chunk"] / times["reference"]})
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    header = list(rows[0])
    cells = [[f"{row[key]:.2f}" if isinstance(row[key], float) else str(row[key]) for key in header] for row in rows]
    print(f"\n{title}\n{table(header, cells)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and lengths; nothing is written")
    quick = parser.parse_args().quick
    results: dict[str, Any] = {"shape": {"B": B, "H": H, "D": D, "dtype": "float32"}}

    results["loop"] = loop = against_the_loop(1024 if quick else 4096, 1 if quick else 5)
    times, gains = loop["milliseconds"], loop["speed-up over the reference"]
    show(
        f"B={B} H={H} T={loop['T']} D={D} (goals at T=4096: forward 15x, forward+backward 40x)",
        [
            {
                "form": name,
                "forward ms": times[name]["forward"],
                "both ms": times[name]["forward+backward"],
                "forward x": gains[name]["forward"],
                "both x": gains[name]["forward+backward"],
            }
            for name in times
        ],
    )
    print(f"chunk forward / softmax forward: {loop['chunk forward over softmax forward']:.2f} (goal at T=4096: 1.5)")

    results["scaling"] = scaling([1024, 2048] if quick else [1024, 2048, 4096, 8192, 16384, 32768], 2 if quick else 5)
    show("growth with T (goal: flat, and below softmax from T=16384)", results["scaling"])
    results["memory"] = memory([(1024, 32)] if quick else [(4096, 32), (16384, 32), (4096, 64)])
    show("peak memory of forward+backward (goal: at most 6)", results["memory"])
    results["short"] = short([2, 8] if quick else [1, 2, 4, 8, 16, 32], 3 if quick else 30)
    show("short sequences", results["short"])
    if not quick:
        write("cpu", results)
        print("\nwritten: benchmarks/results/cpu.json")


if __name__ == "__main__":
    main()
