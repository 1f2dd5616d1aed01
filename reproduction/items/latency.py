"""P15: forward latency and throughput by T, the speed-up over a loop, and the crossover with softmax attention."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from reproduction.claims import MISSING, Claim, Figure, Finding, Item, Table, Value
from reproduction.items import timing
from reproduction.records import Results
from reproduction.runs import Measure, Preset
from reproduction.verdicts import CONDITIONAL, NOT_REPRODUCED, REPRODUCED

MECHANISMS = timing.MECHANISMS
PAPER_LENGTHS = (128, 256, 512, 1024, 2048)
LONGER = (4096, 8192, 16_384, 32_768, 65_536)
HEADS = {"H": 4, "D": 32}  # the paper's model
LARGE = {"H": 16, "D": 128}  # the heads that the crossover is measured with
PAPER_SPEEDUP, PAPER_CROSSOVER = 14.0, 43_000


def latencies(T: int, H: int, D: int, rounds: int, dtype: str = "float32", gpu: bool = False) -> dict[str, Any]:
    """Forward seconds of one sequence, each mechanism on its fastest backend. `gpu`: refuse to run on a CPU."""
    timing.need(gpu)
    calls = {name: timing.forward(name, 1, T, H, D, dtype=dtype) for name in MECHANISMS}
    return {"device": timing.device(), "name": timing.device_name(), "seconds": timing.medians(calls, rounds)}


def speedup(T: int, H: int, D: int, rounds: int, gpu: bool = False) -> dict[str, Any]:
    """Seconds of VLA's forward as a loop over tokens and on the fastest backend."""
    timing.need(gpu)
    calls = {
        name: timing.forward("vla", 1, T, H, D, backend) for name, backend in (("loop", "reference"), ("best", "auto"))
    }
    return {"device": timing.device(), "name": timing.device_name(), "seconds": timing.medians(calls, rounds)}


def others(T: int, H: int, D: int, rounds: int, dtype: str, gpu: bool = False) -> dict[str, Any]:
    """Forward seconds of VLA without refresh, and of softmax attention with the kernel that the paper names."""
    timing.need(gpu)
    calls = {name: timing.forward(name, 1, T, H, D, dtype=dtype) for name in (timing.FLASH, timing.NO_REFRESH)}
    return {"device": timing.device(), "name": timing.device_name(), "seconds": timing.medians(calls, rounds)}


def crossover(softmax: Mapping[int, float], vla: Mapping[int, float]) -> float | None:
    """The T from which VLA is faster: where the lines between measured points cross on log-log axes.

    The shortest T if VLA is always faster, infinity if it is slower at the longest T, None without times.
    """
    lengths = sorted(set(softmax) & set(vla))
    if not lengths:
        return None
    gaps = [math.log(vla[T] / softmax[T]) for T in lengths]
    if gaps[-1] > 0:
        return math.inf
    slower = [i for i, gap in enumerate(gaps) if gap > 0]
    if not slower:
        return float(lengths[0])
    i = slower[-1]  # VLA is faster at all longer T
    share = gaps[i] / (gaps[i] - gaps[i + 1])
    return math.exp(math.log(lengths[i]) + share * math.log(lengths[i + 1] / lengths[i]))


def time_run(preset: Preset, T: int, heads: Mapping[str, int], dtype: str = "float32") -> Measure:
    """Latencies at one T."""
    given = {"T": T, **heads, "rounds": 5 if T > 8192 or heads == LARGE else 20, "dtype": dtype}
    return Measure(latencies, {**given, **timing.place(preset)}, timed=True)


def lengths(preset: Preset) -> tuple[int, ...]:
    """The paper's lengths; the full preset goes on to 65 536."""
    return PAPER_LENGTHS if preset.quick else PAPER_LENGTHS + LONGER


def small(preset: Preset) -> dict[int, Measure]:
    """The paper's model, by T."""
    return {T: time_run(preset, T, HEADS) for T in lengths(preset)}


def large(preset: Preset, dtype: str) -> dict[int, Measure]:
    """Sixteen heads of 128 dimensions, by T."""
    return {T: time_run(preset, T, LARGE, dtype) for T in lengths(preset)}


def other(preset: Preset) -> dict[int, Measure]:
    """The other forms in bfloat16, by T; only on a GPU."""
    if preset.quick:
        return {}
    given = {**LARGE, "rounds": 5, "dtype": "bfloat16", **timing.place(preset)}
    return {T: Measure(others, {"T": T, **given}, timed=True) for T in lengths(preset)}


def speed_run(preset: Preset) -> Measure:
    """The speed-up at the paper's T = 4096; the quick preset has 1024."""
    T = 1024 if preset.quick else 4096
    return Measure(speedup, {"T": T, **HEADS, "rounds": 3, **timing.place(preset)}, timed=True)


def precisions(preset: Preset) -> tuple[str, ...]:
    """The precisions of the crossover. Softmax attention has its fast GPU kernels in bfloat16."""
    return ("float32",) if preset.quick else ("float32", "bfloat16")


def runs(preset: Preset) -> Sequence[Measure]:
    """Times at all lengths, and the speed-up."""
    wide = [run for dtype in precisions(preset) for run in large(preset, dtype).values()]
    return [*small(preset).values(), *wide, *other(preset).values(), speed_run(preset)]


def seconds(results: Results, asked: Mapping[int, Measure], mechanism: str) -> dict[int, float]:
    """Recorded times of a mechanism, by T."""
    found = {T: results.value(run) for T, run in asked.items()}
    return {T: value["seconds"][mechanism] for T, value in found.items() if value is not None}


def recorded(results: Results, preset: Preset, dtype: str | None = None) -> dict[int, Measure]:
    """Recorded runs by T: of the paper's model, or of the large heads in one precision."""
    every = small(preset) if dtype is None else large(preset, dtype)
    return {T: run for T, run in every.items() if results.value(run) is not None}


def machine(results: Results, asked: Mapping[int, Measure]) -> str:
    """The names of the devices that the times were taken on."""
    return ", ".join(sorted({str(results.value(run)["name"]) for run in asked.values()}))


def slope(times: Mapping[int, float]) -> float:
    """The exponent of T: the slope of the line through the three longest T on log-log axes."""
    longest = sorted(times)[-3:]
    x, y = [math.log(T) for T in longest], [math.log(times[T]) for T in longest]
    middle, height = sum(x) / len(x), sum(y) / len(y)
    rise = sum((a - middle) * (b - height) for a, b in zip(x, y, strict=True))
    return rise / sum((a - middle) ** 2 for a in x)


def judge_linear_time(results: Results, preset: Preset) -> Finding:
    """Whether three mechanisms take linear time, by the slope over the longest T."""
    asked = recorded(results, preset)
    if len(asked) < 2:
        return MISSING
    slopes = {name: slope(seconds(results, asked, name)) for name in MECHANISMS}
    worst = max(slopes[name] for name in MECHANISMS if name != "softmax")
    shown = ", ".join(f"{name} {x:.2f}" for name, x in slopes.items())
    first, *_, last = sorted(asked)[-3:]
    note = f"largest exponent of the three from T = {first} to {last}, {machine(results, asked)}: {shown}"
    return Finding(REPRODUCED if worst <= 1.2 else NOT_REPRODUCED, worst, note=note)


def judge_short(results: Results, preset: Preset) -> Finding:
    """Whether softmax attention is the fastest at T = 128."""
    asked = {T: run for T, run in recorded(results, preset).items() if PAPER_LENGTHS[0] == T}
    if not asked:
        return MISSING
    times = {name: seconds(results, asked, name)[PAPER_LENGTHS[0]] for name in MECHANISMS}
    best = min(times, key=lambda name: times[name])
    shown = ", ".join(f"{name} {1e3 * x:.2f}" for name, x in times.items())
    return Finding(
        REPRODUCED if best == "softmax" else NOT_REPRODUCED, best, note=f"ms, {machine(results, asked)}: {shown}"
    )


def judge_speedup(results: Results, preset: Preset) -> Finding:
    """The speed-up of the fastest backend over the loop."""
    run = speed_run(preset)
    found = results.need(run)
    ours = found["seconds"]["loop"] / found["seconds"]["best"]
    good = CONDITIONAL if preset.quick else REPRODUCED
    note = f"at T = {run.arguments['T']}, four heads of 32, {found['name']}: {1e3 * found['seconds']['best']:.2f} ms"
    if found["device"] == "cpu":
        note += "; without a GPU: the chunk-wise form in PyTorch against the loop"
    return Finding(good if ours >= PAPER_SPEEDUP else NOT_REPRODUCED, ours, note=note)


def judge_crossover(results: Results, preset: Preset) -> Finding:
    """From which T on VLA is faster than softmax attention, on a GPU."""
    parts, ours, on_gpu, end = [], None, False, 0
    for dtype in precisions(preset):
        asked = recorded(results, preset, dtype)
        found = crossover(seconds(results, asked, "softmax"), seconds(results, asked, "vla"))
        if found is None:
            continue
        on_gpu, end = all(results.value(run)["device"] == "cuda" for run in asked.values()), max(asked)
        shown = f"{found:.0f}" if math.isfinite(found) else f"none to T = {max(asked)}"
        parts.append(f"{shown} in {dtype} on {machine(results, asked)}")
        ours = found if ours is None else max(ours, found)
    if ours is None or not on_gpu or (math.isinf(ours) and end < PAPER_CROSSOVER):
        needs = "needs a GPU" if not on_gpu else "needs longer sequences: the full preset"
        return Finding(MISSING.verdict, note="; ".join((needs, *parts)))
    note = "tokens, one sequence, sixteen heads of 128, the later of the two precisions: " + "; ".join(parts)
    note += by_form(results, preset)
    verdict = REPRODUCED if ours <= PAPER_CROSSOVER else NOT_REPRODUCED
    return Finding(verdict, ours if math.isfinite(ours) else "none", note=note)


def by_form(results: Results, preset: Preset) -> str:
    """The crossovers of the other forms of both in bfloat16, for a note."""
    asked = recorded(results, preset, "bfloat16")
    softmax = {"PyTorch's choice of kernel": seconds(results, asked, "softmax")}
    vla = {"refresh every 20 tokens": seconds(results, asked, "vla")}
    if extra := {T: run for T, run in other(preset).items() if results.value(run) is not None}:
        softmax["the flash kernel"] = seconds(results, extra, timing.FLASH)
        vla["no refresh"] = seconds(results, extra, timing.NO_REFRESH)
    found = {(x, y): crossover(softmax[x], vla[y]) for y in vla for x in softmax}
    said = [f"{y} against {x} {T:.0f}" for (x, y), T in found.items() if T is not None and math.isfinite(T)]
    return f". In bfloat16: {', '.join(said)}" if len(found) > 1 else ""


def claims() -> list[Claim]:
    """Claims of the scaling figure, its text and the abstract."""
    return [
        Claim(
            "P15-linear-time",
            "scaling figure",
            "linear attention, DeltaNet and VLA take time in proportion to T",
            1.0,
            "time grows at most as T^1.2 over the three longest T",
            judge_linear_time,
        ),
        Claim(
            "P15-short",
            "scaling figure",
            "softmax attention is the fastest at T = 128",
            "softmax",
            "it takes the least time of the four, each on its fastest backend",
            judge_short,
        ),
        Claim(
            "P15-speedup",
            "abstract, section 3.4",
            "the fused form is 14 times faster than the loop over tokens at T = 4096",
            PAPER_SPEEDUP,
            "at least 14 times, on a GPU; with conditions, at the quick preset's T = 1024",
            judge_speedup,
        ),
        Claim(
            "P15-crossover",
            "abstract, scaling figure",
            "VLA is faster than softmax attention from about 43 000 tokens",
            PAPER_CROSSOVER,
            "on a GPU, VLA is faster from 43 000 tokens or fewer, B = 1, H = 16, D = 128, in float32 and bfloat16",
            judge_crossover,
        ),
    ]


def figures(results: Results, preset: Preset) -> list[Figure]:
    """Latency and throughput by T, for the paper's model and the large heads."""
    found = []
    shapes: dict[str, tuple[str | None, str]] = {
        "": (None, "four heads of 32"),
        "-large": ("float32", "sixteen heads of 128, float32"),
        "-large-bf16": ("bfloat16", "sixteen heads of 128, bfloat16"),
    }
    for suffix, (dtype, shown) in shapes.items():
        asked = recorded(results, preset, dtype)
        if not asked:
            continue
        latency, throughput = [], []
        for name in MECHANISMS:
            for T, time in seconds(results, asked, name).items():
                latency.append({"x": T, "y": 1e3 * time, "series": name, "source": "ours"})
                throughput.append({"x": T, "y": T / time, "series": name, "source": "ours"})
        title, note = f"forward, one sequence, {shown}", machine(results, asked)
        found += [
            Figure(f"latency{suffix}", f"Latency: {title}", "tokens", "ms", latency, True, True, note),
            Figure(f"throughput{suffix}", f"Throughput: {title}", "tokens", "tokens/s", throughput, True, True, note),
        ]
    return found


def tables(results: Results, preset: Preset) -> list[Table]:
    """Milliseconds by T."""
    rows: list[list[Value]] = []
    for dtype, shown in ((None, "4 x 32"), ("float32", "16 x 128"), ("bfloat16", "16 x 128, bfloat16")):
        asked = recorded(results, preset, dtype)
        times = {name: seconds(results, asked, name) for name in MECHANISMS}
        rows += [[shown, T, *(f"{1e3 * times[name][T]:.3g}" for name in MECHANISMS)] for T in asked]
    return [Table("Forward, one sequence, ms", ["heads", "T", *MECHANISMS], rows)]


ITEM = Item(
    name="latency",
    number="P15",
    title="Latency, throughput, and the crossover with softmax attention",
    about=(
        "Forward time of one sequence, each mechanism on its fastest backend (softmax attention: PyTorch's "
        "scaled_dot_product_attention). The full preset needs a GPU. The quick preset takes any device, but the "
        "crossover is not judged on a CPU."
    ),
    claims=claims(),
    runs=runs,
    figures=figures,
    tables=tables,
)
