"""What each linear memory recalls: store n key-value pairs, query all of them, count the right answers.

Nothing is trained: this shows the memory alone, with varla's operators.
"""

import time
from typing import Any

import torch
from torch import Tensor

import varla

D = 32  # dimension of keys and values of one head: the memory is a D x D matrix
TRIALS = 64  # batch rows, each with its own pairs


def unit_rows(*shape: int, generator: torch.Generator) -> Tensor:
    x = torch.randn(*shape, generator=generator)
    return torch.nn.functional.normalize(x, dim=-1)


def pairs(n: int, overlap: float) -> tuple[Tensor, Tensor]:
    """n unit keys that share a common direction (cosine `overlap` between any two), and n random unit values."""
    generator = torch.Generator().manual_seed(n)
    own = unit_rows(TRIALS, n, 1, D, generator=generator)
    common = unit_rows(TRIALS, 1, 1, D, generator=generator)
    keys = overlap**0.5 * common + (1 - overlap) ** 0.5 * own
    return keys, unit_rows(TRIALS, n, 1, D, generator=generator)


def recalled(state: varla.State, keys: Tensor, values: Tensor) -> float:
    """Share of keys k for which the nearest value to the read S k, among all values of the row, is the right one."""
    S = state.tensors()["S"][:, 0]
    reads = torch.nn.functional.normalize(keys[:, :, 0], dim=-1) @ S.mT
    nearest = torch.cdist(reads, values[:, :, 0]).argmin(-1)
    return float((nearest == torch.arange(keys.shape[1])).float().mean())


def memories(keys: Tensor, values: Tensor) -> dict[str, varla.State]:
    """The state of each memory after writing all pairs once, in order."""
    plain: dict[str, Any] = {"feature_map": "identity", "return_state": True}
    vla: dict[str, Any] = {**plain, "normalizer": False}
    ones = torch.ones(keys.shape[:3])
    return {
        "linear attention": varla.linear_attention(keys, keys, values, normalizer=False, **plain)[1],
        "delta rule": varla.delta_rule(keys, keys, values, ones, **plain)[1],
        "VLA (paper)": varla.vla(keys, keys, values, keys, **vla)[1],
        "VLA, unit penalty": varla.vla(keys, keys, values, keys, penalty_scale=1.0, **vla)[1],
        "VLA, raw gain = RLS": varla.vla(
            keys, keys, values, keys, gain="raw", penalty_scale=1.0, lambda0=1e-3, refresh_every=None, **vla
        )[1],
    }


def capacity(overlap: float) -> None:
    counts = (4, 8, 16, 24, 32, 48, 64)
    print(f"\nPairs recalled, keys with cosine {overlap:g} to each other, {D} x {D} memory, {TRIALS} trials")
    print(f"{'pairs stored':<22}" + "".join(f"{n:>7}" for n in counts))
    columns = {n: pairs(n, overlap) for n in counts}
    results = {n: memories(*columns[n]) for n in counts}
    for name in results[counts[0]]:
        cells = (recalled(results[n][name], *columns[n]) for n in counts)
        print(f"{name:<22}" + "".join(f"{cell:>7.0%}" for cell in cells))


def stream(tokens: int = 200_000, piece: int = 20_000) -> None:
    print(f"\nStreaming {tokens:,} tokens through one head, {piece:,} at a time")
    generator = torch.Generator().manual_seed(0)
    state = None
    for first in range(0, tokens, piece):
        q, k, v, u = (torch.randn(1, piece, 1, D, generator=generator) for _ in range(4))
        start = time.perf_counter()
        _, state = varla.vla(q, k, v, u, initial_state=state, return_state=True)
        if (first // piece) % 3 == 0:
            seconds = time.perf_counter() - start
            print(
                f"  {first + piece:>8,} tokens   state {state.nbytes:,} bytes   |S| {state.S.norm():7.2f}   "
                f"|A| {state.A.norm():6.2f}   {piece / seconds:>9,.0f} tokens/s"
            )


def main() -> None:
    print("Backends here:")
    for backend in varla.backends().values():
        print(f"  {backend.name:<10} {'ready' if backend.available else backend.reason}: {backend.summary}")
    with torch.no_grad():
        capacity(overlap=0.0)
        capacity(overlap=0.5)
        stream()


if __name__ == "__main__":
    main()
