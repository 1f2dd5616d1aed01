"""Section `speed`: time and memory of every form, forward and backward, at the shapes that have a goal."""

import sys

import torch

from benchmarks.gpu import forms, timing
from benchmarks.gpu.record import Findings, Options, Row, text_of

FORWARD, BOTH, PEAK = "forward ms", "both ms", "beyond inputs MB"

# (D, B, T): milliseconds (forward, forward+backward) of the goal, and of the least that was asked for.
SPEED: dict[tuple[int, int, int], tuple[tuple[float, float], tuple[float, float]]] = {
    (128, 8, 4096): ((1.2, 3.3), (3.0, 8.3)),
    (128, 1, 32768): ((1.5, 4.2), (3.7, 10.5)),
    (64, 8, 4096): ((0.8, 2.6), (2.0, 6.5)),
}
PEAK_LIMIT = ((128, 8, 4096), 2100.0)  # MB beyond the inputs and the outputs' gradient: DeltaNet takes 2117


def run(found: Findings, options: Options) -> None:
    """Measure every form at every shape. The peers come last, because an error in one may make the GPU unusable."""
    title = f"bf16, H={forms.HEADS}; peak of forward+backward, with the inputs and beyond them"
    forms.see_peers(options.peers)
    rate = timing.copy_rate(options.repeats)
    for D, B, T in SPEED:
        least = 5 * B * T * forms.HEADS * D * 2 / rate / 1e6
        found.notes.append(
            f"{shape_name(D, B, T)}: q, k, v, u, o moved once at {rate:.0f} GB/s (a copy): {least:.3f} ms"
        )
    rows: list[Row] = []
    for form in (*forms.VARLA, *forms.SOFTMAX, *forms.PEERS):
        for D, B, T in SPEED:
            row: Row = {"shape": shape_name(D, B, T), "form": form}
            try:
                torch.cuda.empty_cache()
                row.update(speed_of(forms.work(form, B, T, forms.HEADS, D), options.repeats))
            except Exception as error:  # a peer's failure is a result
                row["error"] = text_of(error)
            rows.append(row)
        found.tables[title] = with_ratios(rows)
        found.goals = goals(rows)
        found.keep()
    if "fla" in sys.modules:
        found.notes.append(f"flash-linear-attention {sys.modules['fla'].__version__}; it normalises q and k itself")


def speed_of(x: forms.Work, repeats: int) -> Row:
    ahead, both = timing.timed(x.forward, repeats), timing.timed(x.both, repeats)
    peak, beyond = timing.peak_mb(x.both)
    return {
        FORWARD: ahead.ms, BOTH: both.ms, "peak MB": peak, PEAK: beyond,
        "host ms": ahead.host, "host both ms": both.host, "spread %": 100 * max(ahead.spread, both.spread),
    }  # fmt: skip


def shape_name(D: int, B: int, T: int) -> str:
    return f"D={D} B={B} T={T}"


def with_ratios(rows: list[Row]) -> list[Row]:
    """The rows sorted by shape, each with the ratio of its times to DeltaNet's."""
    base = {row["shape"]: row for row in rows if row["form"] == "DeltaNet"}
    shapes = list(dict.fromkeys(row["shape"] for row in rows))
    result = []
    for row in sorted(rows, key=lambda row: shapes.index(row["shape"])):
        peer = base.get(row["shape"], {})
        ratios = {f"{key} / DeltaNet": ratio(row.get(key), peer.get(key)) for key in (FORWARD, BOTH)}
        result.append({**row, **ratios})
    return result


def ratio(x: float | None, y: float | None) -> float | None:
    return None if x is None or y is None else x / y


def goals(rows: list[Row]) -> list[Row]:
    """Goals in milliseconds (doubled with refresh at B=8, none at B=1), and relative to the peers of the same run."""
    by = {(row["shape"], row["form"]): row for row in rows}
    found = Findings()
    for (D, B, T), limits in SPEED.items():
        shape = shape_name(D, B, T)
        for form, period in forms.VARLA.items():
            if period is not None and B == 1:
                continue  # no goal is set
            row = by.get((shape, form), {})
            factor = 1 if period is None else 2
            for level, numbers in zip(("goal", "least"), limits, strict=True):
                for key, limit in zip((FORWARD, BOTH), numbers, strict=True):
                    found.goal(f"{shape}, {form}, {key}, {level}", row.get(key), most=factor * limit)
            for peer, most in (("DeltaNet", 1.0), ("DeltaNet", 2.5), ("MesaNet", 0.5)):
                for key in (FORWARD, BOTH):
                    other = by.get((shape, peer), {}).get(key)
                    if period is None and other is not None:
                        found.goal(f"{shape}, {form}, {key} / {peer}", ratio(row.get(key), other), most=most)
            if PEAK_LIMIT[0] == (D, B, T):
                found.goal(f"{shape}, {form}, {PEAK}", row.get(PEAK), most=PEAK_LIMIT[1])
    return found.goals
