"""P16: the size of each mechanism's state, and the cost of a token."""

from collections.abc import Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from reproduction.claims import Claim, Figure, Finding, Item, Judge, Table
from reproduction.items import timing
from reproduction.records import Results, need
from reproduction.runs import Measure, Preset
from reproduction.verdicts import CONDITIONAL, FALSE, NOT_REPRODUCED, REPRODUCED
from varla.layers import build

MECHANISMS = timing.MECHANISMS
LENGTHS = (100, 1000, 10_000, 100_000)
LARGE = {"d": 4096, "layers": 32}  # the model of the table's footnote
BYTES = {"fp16": 2, "fp32": 4}
PAPER_CACHE = 52  # GB
FACTORS = {"deltanet-paper": 3.0, "vla": 5.0}  # from the table; the scaling section says 3 for VLA


def state_bytes(mechanism: str, d_model: int, n_heads: int, layers: int) -> dict[str, list[int]]:
    """Bytes of one sequence's float32 state in all layers, by the number of tokens, as the library counts them."""
    layer = build(mechanism, d_model=d_model, n_heads=n_heads)
    return {"T": list(LENGTHS), "bytes": [layers * layer.state_size(T) for T in LENGTHS]}


def cache_bytes(T: int, d: int, layers: int, width: int) -> int:
    """Bytes of the keys and values of all tokens and layers, `width` bytes per number."""
    return 2 * T * d * layers * width


def factors(T: int, H: int, D: int, backend: str, rounds: int, gpu: bool = False) -> dict[str, Any]:
    """Forward seconds of the three recurrent mechanisms on one backend. `gpu`: refuse to run on a CPU."""
    timing.need(gpu)
    names = [name for name in MECHANISMS if name != "softmax"]
    seconds = timing.medians({name: timing.forward(name, 1, T, H, D, backend) for name in names}, rounds)
    return {"device": timing.device(), "name": timing.device_name(), "seconds": seconds}


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the PyTorch operators that run inside it, but not views."""

    def __init__(self) -> None:
        """Start at zero."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count one operator, and run it."""
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))


def operators(tokens: int, H: int, D: int) -> dict[str, float]:
    """PyTorch operators per token in the loop. On a GPU they set the time: tensors this small are launch-bound."""
    found = {}
    for name in (name for name in MECHANISMS if name != "softmax"):
        counts = []
        for T in (tokens, 2 * tokens):
            call = timing.forward(name, 1, T, H, D, "reference")
            with Counter() as counter:
                call()
            counts.append(counter.count)
        found[name] = (counts[1] - counts[0]) / tokens
    return found


def size_run(mechanism: str) -> Measure:
    """The paper's model: d = 128, four heads, two layers."""
    given = {"mechanism": mechanism, "d_model": 128, "n_heads": 4, "layers": 2}
    return Measure(state_bytes, given)


def cache_run(width: str) -> Measure:
    """The footnote's model, at 100 000 tokens."""
    return Measure(cache_bytes, {"T": 100_000, **LARGE, "width": BYTES[width]})


LARGE_VLA = Measure(
    state_bytes,
    {"mechanism": "vla", "d_model": LARGE["d"], "n_heads": 32, "layers": LARGE["layers"]},
)


def factor_run(preset: Preset, backend: str) -> Measure:
    """Times with the paper's four heads of 32 dimensions. "reference" is a loop over tokens, like the paper's code."""
    T = 256 if preset.quick else 1024
    given = {"T": T, "H": 4, "D": 32, "backend": backend, "rounds": 10, **timing.place(preset)}
    return Measure(factors, given, timed=True)


OPERATORS = Measure(operators, {"tokens": 60, "H": 4, "D": 32})


FORMS = {"reference": "loop over tokens", "chunk": "chunk-wise, PyTorch", "auto": "the fastest backend"}


def runs(preset: Preset) -> Sequence[Measure]:
    """Sizes and times."""
    sizes = [*(size_run(name) for name in MECHANISMS), LARGE_VLA, *(cache_run(width) for width in BYTES)]
    return [*sizes, OPERATORS, *(factor_run(preset, backend) for backend in FORMS)]


def judge_fixed(results: Results, preset: Preset) -> Finding:
    """Whether the state of three mechanisms is independent of T while softmax attention's cache grows."""
    found = {name: results.need(size_run(name)) for name in MECHANISMS}
    fixed = all(len(set(found[name]["bytes"])) == 1 for name in MECHANISMS if name != "softmax")
    grows = found["softmax"]["bytes"][-1] / found["softmax"]["bytes"][0]
    shown = ", ".join(f"{name} {found[name]['bytes'][-1]:,}" for name in MECHANISMS)
    note = f"bytes after {LENGTHS[-1]:,} tokens, two layers, d = 128, float32: {shown}"
    ours = "fixed" if fixed else "not fixed"
    return Finding(REPRODUCED if fixed and grows > 900 else FALSE, ours, note=note)


def judge_cache(results: Results, preset: Preset) -> Finding:
    """The footnote's 52 GB."""
    half, full, vla = (results.need(run) for run in (cache_run("fp16"), cache_run("fp32"), LARGE_VLA))
    ours = {"fp16": half / 1e9, "fp32": full / 1e9}
    close = [width for width, size in ours.items() if abs(size - PAPER_CACHE) < 1]
    note = (
        f"GB in fp16; {ours['fp32']:.1f} in fp32, the paper's precision. VLA's state in fp32, 32 heads of 128: "
        f"{vla['bytes'][0] / 1e9:.2f} GB"
    )
    verdict = REPRODUCED if "fp16" in close else CONDITIONAL if close else NOT_REPRODUCED
    return Finding(verdict, ours["fp16"], note=note)


def ratios(results: Results, preset: Preset, backend: str) -> dict[str, float] | None:
    """Times divided by linear attention's; None if they have no record."""
    found = results.value(factor_run(preset, backend))
    return None if found is None else {name: x / found["seconds"]["linear"] for name, x in found["seconds"].items()}


def judge_factor(mechanism: str, paper: float) -> Judge:
    """The cost relative to linear attention, as a loop over tokens."""

    def judge(results: Results, preset: Preset) -> Finding:
        run = factor_run(preset, "reference")
        loop, best = (need(ratios(results, preset, backend)) for backend in ("reference", "auto"))
        found = results.need(run)
        good = loop[mechanism] <= 1.2 * paper
        note = (
            f"forward time divided by linear attention's, both as a loop over {run.arguments['T']} tokens on "
            f"{found['name']}; {best[mechanism]:.1f} with the fastest backend of each"
        )
        if (counts := results.value(OPERATORS)) is not None:
            ratio = counts[mechanism] / counts["linear"]
            note += f". A token takes {counts[mechanism]:.1f} PyTorch operators, {ratio:.1f} times linear attention's"
        return Finding(REPRODUCED if good else NOT_REPRODUCED, loop[mechanism], note=note)

    return judge


def claims() -> list[Claim]:
    """The claims of the complexity table."""
    where = "complexity table"
    return [
        Claim(
            "P16-state",
            where,
            "linear attention, DeltaNet and VLA have a fixed state; softmax attention's grows with T",
            "fixed",
            "the library's state sizes do not depend on T; the cache does",
            judge_fixed,
        ),
        Claim(
            "P16-cache",
            f"{where}, footnote",
            "softmax attention's cache takes about 52 GB at T = 100K, d = 4096, 32 layers",
            PAPER_CACHE,
            "2 T d L numbers are within 1 GB of it in fp16; with conditions, if only in fp32",
            judge_cache,
        ),
        *(
            Claim(
                f"P16-factor-{name}",
                where,
                f"{name} costs about {paper:g} times as much as linear attention",
                paper,
                "at most 1.2 times the paper's factor, as a loop over tokens",
                judge_factor(name, paper),
            )
            for name, paper in FACTORS.items()
        ),
        Claim(
            "P16-factor-vla-text",
            "scaling section",
            "VLA in Python is about 3 times slower than linear attention (5 in the table)",
            3.0,
            "at most 1.2 times the paper's factor, as a loop over tokens",
            judge_factor("vla", 3.0),
        ),
    ]


def figures(results: Results, preset: Preset) -> list[Figure]:
    """State sizes over tokens."""
    points: list[dict[str, object]] = []
    for name in MECHANISMS:
        found = results.value(size_run(name))
        if found is not None:
            pairs = zip(found["T"], found["bytes"], strict=True)
            points += [{"x": T, "y": size, "series": name, "source": "ours"} for T, size in pairs]
    title = "State of one sequence, two layers, d = 128, float32"
    return [Figure("state-size", title, "tokens", "bytes", points, log_x=True, log_y=True)]


def tables(results: Results, preset: Preset) -> list[Table]:
    """State sizes, and times divided by linear attention's."""
    sizes = [
        [name, *(f"{size:,}" for size in found["bytes"])]
        for name in MECHANISMS
        if (found := results.value(size_run(name))) is not None
    ]
    times: list[list[str]] = []
    for backend, shown in FORMS.items():
        found, run = ratios(results, preset, backend), factor_run(preset, backend)
        if found is not None:
            times.append([shown, results.value(run)["name"], *(f"{found[name]:.2f}" for name in MECHANISMS[1:])])
    headers = ["mechanism", *(f"T = {T:,}" for T in LENGTHS)]
    return [
        Table("Bytes of one sequence's state, two layers, d = 128", headers, sizes),
        Table(
            "Forward time divided by linear attention's, same backend", ["backend", "device", *MECHANISMS[1:]], times
        ),
    ]


ITEM = Item(
    name="complexity",
    number="P16",
    title="State sizes and constant factors",
    about=(
        "The bytes that each mechanism keeps of a sequence, as the library counts them; the cache of a large model; "
        "and the forward time divided by linear attention's. The paper's constant factors are those of loops over "
        "tokens."
    ),
    claims=claims(),
    runs=runs,
    figures=figures,
    tables=tables,
)
