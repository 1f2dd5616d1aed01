"""The GPU kernels: `python -m benchmarks.gpu` prints tables section by section, writes benchmarks/results/gpu.json.

Sections are independent: `--only speed` measures one and leaves the others in the file as they are. `--peers FOLDER`
names a folder with fla-core and einops unpacked. Times are medians by device events after a warm-up. Where there is no
checkout, VARLA_COMMIT names the commit. Sections that are not timed also run in Triton's interpreter, with `--quick`.
"""

import argparse
import inspect
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import logsigmoid, scaled_dot_product_attention, softplus

import varla
from benchmarks import measure, train_step
from varla.training import environment

ROOT = Path(__file__).parent.parent
MB = 2**20
DEVICE = "cuda"
HEADS = 16
Row = dict[str, Any]

VARLA: dict[str, int | None] = {"varla, no refresh": None, "varla, refresh 20": 20}
SOFTMAX = {"SDPA": None, "SDPA, flash": SDPBackend.FLASH_ATTENTION}  # PyTorch's own choice; the one the paper names
PEERS = {"DeltaNet": ("fla.ops.delta_rule", "chunk_delta_rule"), "MesaNet": ("fla.ops.mesa_net", "chunk_mesa_net")}
FORWARD, BOTH, PEAK = "forward ms", "both ms", "peak MB"

# (D, B, T): milliseconds forward and forward+backward to reach, and at the least.
SPEED: dict[tuple[int, int, int], tuple[tuple[float, float], tuple[float, float]]] = {
    (128, 8, 4096): ((1.2, 3.3), (3.0, 8.3)),
    (128, 1, 32768): ((1.5, 4.2), (3.7, 10.5)),
    (64, 8, 4096): ((0.8, 2.6), (2.0, 6.5)),
}
PEAK_LIMIT = ((128, 8, 4096), 2100.0)  # MB
BOUNDS: dict[str, float | None] = {"float32": 2e-5, "bfloat16": 1e-2, "float16": None}


@dataclass(frozen=True)
class Options:
    quick: bool = False
    peers: str | None = None

    @property
    def repeats(self) -> int:
        return 3 if self.quick else 20


@dataclass
class Found:
    """What a section measured so far. `keep` saves it, so that a stop loses no more than what is under way."""

    tables: dict[str, list[Row]] = field(default_factory=dict)
    goals: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    details: list[Row] = field(default_factory=list)  # for the file only
    error: str | None = None
    seconds: float = 0.0
    keep: Callable[[], None] = lambda: None

    def add(self, title: str, **row: Any) -> None:
        self.tables.setdefault(title, []).append(row)

    def goal(self, what: str, found: float | None, *, most: float | None = None, least: float | None = None) -> None:
        """Hold a number against a limit. What was not measured, or is no number, does not meet it."""
        is_met = found is not None and (most is None or found <= most) and (least is None or found >= least)
        limit = f"at most {most:g}" if most is not None else f"at least {least:g}"
        self.goals.append({"goal": what, "found": found, "limit": limit, "met": is_met})

    def to_dict(self) -> Row:
        values = {"tables": self.tables, "goals": self.goals, "notes": self.notes, "details": self.details}
        return {"seconds": round(self.seconds, 1), **{k: v for k, v in values.items() if v}, "error": self.error}


def cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return "-" if value is None else str(value)[:80]


def render(name: str, found: Found) -> str:
    """Everything for the terminal."""
    parts = [f"== {name} ({found.seconds:.0f} s)"]
    for title, rows in {**found.tables, "goals": found.goals}.items():
        if rows:
            header = list(dict.fromkeys(key for row in rows for key in row))
            cells = [[cell(row.get(key)) for key in header] for row in rows]
            parts.append(f"{title}\n{measure.table(header, cells)}")
    parts += [f"note: {note}" for note in found.notes]
    parts += [f"FAILED: {found.error}"] if found.error else []
    return "\n\n".join(parts)


def save(name: str, found: Found) -> None:
    """Put a section into gpu.json beside those already there."""
    path = measure.RESULTS / "gpu.json"
    before: Row = json.loads(path.read_text())["sections"] if path.exists() else {}
    machine = {**environment.describe(), "commit": os.environ.get("VARLA_COMMIT") or environment.commit()}
    now = {key: machine[key] for key in ("date", "commit", "gpus", "torch")}
    sections = {**before, name: {**now, **found.to_dict()}}
    measure.write("gpu", {"machine": machine, "sections": {key: sections[key] for key in SECTIONS if key in sections}})


def text_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


# Timing.


class Timing(NamedTuple):
    ms: float
    spread: float  # from the 10th to the 90th percentile, over the median
    host: float  # ms until the call returns, the device being idle: near `ms`, it is the host that is slow


def timing(call: Callable[[], object], repeats: int = 20) -> Timing:
    for _ in range(3):
        call()
    host = []
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        host.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    whole = time.perf_counter() - start
    repeats = max(3, min(repeats, int(2 / whole)))  # about two seconds at the most
    marks = [(event(), event()) for _ in range(repeats)]
    for begin, end in marks:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    times = sorted(begin.elapsed_time(end) for begin, end in marks)
    median = statistics.median(times)
    spread = times[-1 - repeats // 10] - times[repeats // 10]
    return Timing(median, spread / median, 1e3 * statistics.median(host))


def event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def copy_rate(repeats: int) -> float:
    """GB/s that a copy on the device reads and writes: what memory-bound work is held against."""
    source = torch.randn(2**28, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * source.nbytes / timing(lambda: target.copy_(source), repeats).ms / 1e6


def peak_mb(call: Callable[[], object]) -> tuple[float, float]:
    """The most device memory allocated during a call: all of it, and beyond what was there before."""
    call()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    kept = call()
    peak = torch.cuda.max_memory_allocated()
    del kept
    return peak / MB, (peak - before) / MB


@dataclass(frozen=True)
class Work:
    """An operator and its inputs."""

    call: Callable[..., Tensor]
    tensors: list[Tensor]
    grad: Tensor

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self.call(*self.tensors)

    def both(self) -> object:
        return torch.autograd.grad(self.call(*self.tensors), self.tensors, self.grad)


def work(form: str, B: int, T: int, heads: int, D: int, dtype: torch.dtype = torch.bfloat16) -> Work:
    """Random inputs for a form, in the layout it likes best, and raw: each normalises keys as its layer would."""

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, dtype=dtype)

    rest: list[Tensor] = []
    call: Callable[..., Any]
    if form in VARLA:
        rest = [leaf(B, T, heads, D)]
        call = partial(varla.vla, refresh_every=VARLA[form], backend="triton")
    elif form in SOFTMAX:
        call = partial(softmax, only=SOFTMAX[form])
    else:
        call = partial(first_of, getattr(import_module(PEERS[form][0]), PEERS[form][1]))
        rest = [leaf(B, T, heads).sigmoid()]
        if form == "MesaNet":  # decay, beta and lambda in float32, as its documentation recommends
            decay = logsigmoid(leaf(B, T, heads).float())
            rest = [decay, rest[0].float(), softplus(leaf(heads, D).float()) + 0.25]
    shape = (B, heads, T, D) if form in SOFTMAX else (B, T, heads, D)
    tensors = [x.detach().requires_grad_() for x in (*(leaf(*shape) for _ in range(3)), *rest)]
    return Work(call, tensors, torch.randn_like(tensors[2]))


def first_of(peer: Callable[..., Any], *tensors: Tensor) -> Tensor:
    """A peer's outputs, without its states."""
    o: Tensor = peer(*tensors, use_qk_l2norm_in_kernel=True)[0]
    return o


def softmax(q: Tensor, k: Tensor, v: Tensor, only: SDPBackend | None) -> Tensor:
    if only is None:
        return scaled_dot_product_attention(q, k, v, is_causal=True)
    with sdpa_kernel(only):
        return scaled_dot_product_attention(q, k, v, is_causal=True)


# Compiling, side by side on the host's cores: only the compile cache is kept.

Job = tuple[str, int, int, str]  # form, heads, D, type
JOBS: dict[str, list[Job]] = {
    "speed": [(form, HEADS, D, "bfloat16") for D in (128, 64) for form in (*VARLA, *PEERS)],
    "paper": [(form, HEADS, 128, "bfloat16") for form in VARLA] + [(form, 4, 32, "float32") for form in VARLA],
    "linear": [(form, 4, 64, "bfloat16") for form in VARLA],
}


def compile_one(job: Job, peers: str | None) -> None:
    os.environ["FLA_CACHE_RESULTS"] = "0"  # a peer's choice of configurations is made later, undisturbed
    see_peers(peers)
    form, heads, D, dtype = job
    work(form, 8, 1024, heads, D, getattr(torch, dtype)).both()
    torch.cuda.synchronize()


def compile_all(jobs: Sequence[Job], peers: str | None, limit: float = 150.0) -> None:
    """Fill Triton's cache on disk. What fails or takes too long here is compiled, or fails, when it is measured."""
    jobs = [job for job in dict.fromkeys(jobs) if peers or job[0] not in PEERS]
    script = "import json, sys; from benchmarks import gpu; gpu.compile_one(*json.loads(sys.argv[1]))"
    start = time.perf_counter()
    running = []
    for job in jobs:
        command = [sys.executable, "-W", "ignore", "-c", script, json.dumps([job, peers])]
        running.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
    for job, process in zip(jobs, running, strict=True):
        try:
            _, errors = process.communicate(timeout=max(1.0, limit - (time.perf_counter() - start)))
            if process.returncode:
                print(f"compiling {job}: {errors.decode(errors='replace').strip()[-200:]}")
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    if jobs:
        print(f"compiled {len(jobs)} forms in {time.perf_counter() - start:.0f} s", flush=True)


def see_peers(folder: str | None) -> None:
    if folder is not None and folder not in sys.path:
        sys.path.append(folder)


# The sections.


def speed(found: Found, options: Options) -> None:
    """Every form at every shape; the peers last, since one of them may take the device down with it."""
    title = f"bf16, H={HEADS}; peak of forward+backward, all that is allocated, inputs included"
    see_peers(options.peers)
    rate = copy_rate(options.repeats)
    for D, B, T in SPEED:
        least = 5 * B * T * HEADS * D * 2 / rate / 1e6
        found.notes.append(
            f"{shape_name(D, B, T)}: q, k, v, u, o moved once at {rate:.0f} GB/s (a copy): {least:.3f} ms"
        )
    rows: list[Row] = []
    for form in (*VARLA, *SOFTMAX, *PEERS):
        for D, B, T in SPEED:
            row: Row = {"shape": shape_name(D, B, T), "form": form}
            try:
                torch.cuda.empty_cache()
                row.update(speed_of(work(form, B, T, HEADS, D), options.repeats))
            except Exception as error:  # a peer's failure is a finding
                row["error"] = text_of(error)
            rows.append(row)
        found.tables[title] = with_ratios(rows)
        found.goals = speed_goals(rows)
        found.keep()
    if "fla" in sys.modules:
        found.notes.append(f"flash-linear-attention {sys.modules['fla'].__version__}; it normalises q and k itself")


def speed_of(x: Work, repeats: int) -> Row:
    ahead, both = timing(x.forward, repeats), timing(x.both, repeats)
    peak, beyond = peak_mb(x.both)
    return {
        FORWARD: ahead.ms, BOTH: both.ms, PEAK: peak, "beyond inputs MB": beyond,
        "host ms": ahead.host, "host both ms": both.host, "spread %": 100 * max(ahead.spread, both.spread),
    }  # fmt: skip


def shape_name(D: int, B: int, T: int) -> str:
    return f"D={D} B={B} T={T}"


def with_ratios(rows: list[Row]) -> list[Row]:
    """Sorted by shape, each row with its times over DeltaNet's."""
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


def speed_goals(rows: list[Row]) -> list[Row]:
    """The milliseconds to reach, twice as many with refresh at B=8, and the peers of the same run."""
    by = {(row["shape"], row["form"]): row for row in rows}
    found = Found()
    for (D, B, T), limits in SPEED.items():
        shape = shape_name(D, B, T)
        for form, period in VARLA.items():
            if period is not None and B == 1:
                continue  # as fast as can be: no number is set
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


@dataclass(frozen=True)
class Case:
    """One shape to check. keys "near": nearly parallel keys and directions; "same": one of each, repeated."""

    B: int
    T: int
    H: int
    D: int
    Dv: int = 0  # 0: as D
    keys: str = "random"
    state: bool = False  # given and returned, with gradients; else they are of the outputs alone
    lengths: tuple[int, ...] = ()  # of packed sequences, T in all
    refresh_every: int | None = 20
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        """All that is not as usual."""
        extra = [f"Dv={self.Dv}"] if self.Dv else []
        extra += [f"{self.keys} keys"] if self.keys != "random" else []
        extra += ["state"] if self.state else []
        extra += [f"{len(self.lengths)} packed"] if self.lengths else []
        extra += [f"{name}={value}" for name, value in (("refresh_every", self.refresh_every), *self.options)]
        return " ".join([f"B={self.B} T={self.T} H={self.H} D={self.D}", *extra])


def cases(quick: bool) -> list[Case]:
    packed = (3, 0, 70, 1, 300, 64, 129)
    if quick:
        one = partial(Case, 1, 33, 1, 16)
        small = [one(refresh_every=period, state=period is None) for period in (20, None)]
        return [*small, one(lengths=(3, 0, 30)), one(keys="near", options=(("gain", "projection"),))]
    made = []
    for period in (20, None):
        made += [Case(2, 333, 2, D, state=D in (32, 128), refresh_every=period) for D in (16, 32, 48, 64, 96, 128)]
        made += [Case(1, T, 2, 64, refresh_every=period) for T in (1, 17, 64, 257, 1025)]
        made += [Case(2, 150, 1, D, Dv, refresh_every=period) for D, Dv in ((64, 128), (128, 64), (128, 256), (96, 40))]
        made += [Case(1, sum(packed), 2, D, lengths=packed, state=True, refresh_every=period) for D in (64, 128)]
        made += [Case(1, 500, 2, D, keys=keys, refresh_every=period) for D in (64, 128) for keys in ("near", "same")]
        settings: tuple[tuple[str, Any], ...]
        for settings in ((("gain", "projection"),), (("normalizer", False),), (("gain", "projection"), ("lambda0", 1))):
            made.append(Case(2, 333, 2, 64, options=settings, refresh_every=period))
        made.append(Case(1, 333, 2, 128, options=(("gain", "projection"),), refresh_every=period))
    made.append(Case(1, 333, 2, 64, refresh_every=7, options=(("refresh", 0.1),), state=True))
    made.append(Case(1, 333, 2, 64, options=(("update_penalty", False),)))
    return [*made, Case(1, 65536, 1, 64)]


def inputs_of(case: Case, dtype: torch.dtype, seed: int) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """(q, k, v, u), the state S, A, z (or nothing) and the gradients of outputs and state: on the CPU, rounded."""
    generator = torch.Generator().manual_seed(seed)
    randn = partial(torch.randn, generator=generator)
    D, Dv = case.D, case.Dv or case.D
    q, k, v, u = (randn(case.B, case.T, case.H, d) for d in (D, D, Dv, D))
    if case.keys == "near":
        k, u = k[:, :1] + 0.1 * k, u[:, :1] + 0.01 * u
    elif case.keys == "same":
        k, u = (x[:, :1].expand_as(x).clone() for x in (k, u))
    gradients = [randn(v.shape).to(dtype)]
    state = []
    if case.state:
        rows = len(case.lengths) or case.B
        X = randn(rows, case.H, D, D)
        A = X @ X.mT / D + torch.eye(D)
        state = [randn(rows, case.H, Dv, D), A, randn(rows, case.H, D).abs()]
        gradients += [randn(x.shape) for x in state]
    return [x.to(dtype) for x in (q, k, v, u)], state, gradients


def results_of(
    case: Case, given: Sequence[Sequence[Tensor]], backend: str, device: str, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Outputs and gradients by name; `dtype`: everything converted to it first."""
    inputs, state, gradients = ([x.detach().to(device, dtype or x.dtype) for x in group] for group in given)
    leaves = [x.requires_grad_() for x in (*inputs, *state)]
    options: Row = {"refresh_every": case.refresh_every, "backend": backend, **dict(case.options)}
    if case.lengths:
        options["cu_seqlens"] = torch.tensor([0, *case.lengths], device=device).cumsum(0)
    if state:
        seen = torch.arange(len(state[0]), device=device) * 14 + 3
        o, final = varla.vla(*inputs, initial_state=varla.VLAState.of([*state, seen]), return_state=True, **options)
        outputs = {"o": o, "S": final.S, "A": final.A, "z": final.z}
    else:
        outputs = {"o": varla.vla(*inputs, **options)}
    found = torch.autograd.grad(list(outputs.values()), leaves, gradients, allow_unused=True)
    names = [f"d{name}" for name in ("q", "k", "v", "u", "S", "A", "z")]
    grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves, found, strict=True)]
    return {name: x.detach() for name, x in (*outputs.items(), *zip(names, grads, strict=False))}


@contextmanager
def poisoned() -> Iterator[None]:
    """Inside, torch.empty gives NaN: what is not written, or read before it is, shows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def poison_allocator() -> None:
    """Leave NaN in the memory that PyTorch's allocator hands out next."""
    torch.cuda.empty_cache()
    sizes = [2**28, *[2**17] * 64]  # floats: from its pool of large blocks, and of small ones
    filled = [torch.full((size,), math.nan, device=DEVICE) for size in sizes]
    del filled


def check_case(case: Case, dtype_name: str, seed: int) -> Row:
    """Errors by norm against float64, whether a second run gives the same bits, and NaN in poisoned memory.

    The float64 side is the chunk form on the CPU: its batched Cholesky factorisations are ten times quicker there.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    row: Row = {"case": str(case), "type": dtype_name}
    try:
        given = inputs_of(case, getattr(torch, dtype_name), seed)
        wanted = results_of(case, given, "chunk", "cpu", torch.float64)
        if device == "cuda":
            poison_allocator()
        got, again = (results_of(case, given, "triton", device) for _ in range(2))
        with poisoned():
            third = results_of(case, given, "triton", device)
        row["errors"] = {name: relative(got[name], wanted[name]) for name in wanted}
        row["same bits"] = all(torch.equal(got[name], again[name]) for name in got)
        row["NaN"] = sum(int(x.isnan().sum()) for each in (got, third) for x in each.values())
    except Exception as error:  # the other cases go on
        row["error"] = text_of(error)
    return row


def relative(got: Tensor, wanted: Tensor) -> float:
    size = wanted.norm()
    return float((got.cpu().double() - wanted).norm() / (size if size > 0 else 1.0))


def check_group(group: Sequence[tuple[Case, str, int]]) -> list[Row]:
    torch.set_num_threads(1)
    return [check_case(*job) for job in group]


def accuracy(found: Found, options: Options) -> None:
    """Every case in every type, cases that share kernels in one process: the host compiles them side by side."""
    groups: dict[tuple[Any, ...], list[tuple[Case, str, int]]] = {}
    for seed, case in enumerate(cases(options.quick)):
        for dtype in BOUNDS:
            if dtype == "float16" and case.T > 10_000:
                continue
            kernels = (dtype, max(16, 1 << (case.D - 1).bit_length()), case.refresh_every)
            groups.setdefault(kernels, []).append((case, dtype, seed))
    ordered = sorted(groups.values(), key=lambda group: -sum(job[0].D for job in group))
    if torch.cuda.is_available():
        workers = max(1, min(12, (os.cpu_count() or 1) - 2, len(ordered)))
        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            for rows in pool.map(check_group, ordered):
                judge(found, rows)
    else:
        judge(found, [row for group in ordered for row in check_group(group)])


def judge(found: Found, rows: list[Row]) -> None:
    found.details += rows
    found.tables = {"relative error by norm against float64, worst of each type": worst(found.details)}
    found.goals = accuracy_goals(found.details)
    found.notes += [f"{row['type']}, {row['case']}: {row['error']}" for row in rows if "error" in row]
    found.keep()


def worst(rows: list[Row]) -> list[Row]:
    result = []
    for dtype in BOUNDS:
        mine = [row for row in rows if row["type"] == dtype]
        errors = [(e, name, row["case"]) for row in mine for name, e in row.get("errors", {}).items()]
        errors.sort(key=lambda each: math.inf if math.isnan(each[0]) else each[0], reverse=True)
        line: Row = {"type": dtype, "cases": len(mine), "failed": sum("error" in row for row in mine)}
        for what, is_gradient in (("outputs", False), ("gradients", True)):
            line[what] = next((error for error, name, _ in errors if name.startswith("d") == is_gradient), None)
        line["other bits"] = sum(not row["same bits"] for row in mine if "same bits" in row)
        line["NaN"] = sum(row.get("NaN", 0) for row in mine)
        result.append({**line, "worst": f"{errors[0][1]} at {errors[0][2]}" if errors else None})
    return result


def accuracy_goals(rows: list[Row]) -> list[Row]:
    found = Found()
    for line in worst(rows):
        bound = BOUNDS[line["type"]]
        for what in ("outputs", "gradients") if bound is not None else ():
            found.goal(f"{line['type']}, {what}", None if line["failed"] else line[what], most=bound)
    found.goal("shapes", float(len({row["case"] for row in rows})), least=30)
    found.goal("not the same bits twice", float(sum(not row.get("same bits", False) for row in rows)), most=0)
    found.goal("NaN from poisoned memory", float(sum(row.get("NaN", 1) for row in rows)), most=0)
    return found.goals


def paper(found: Found, options: Options) -> None:
    loop(found, options)
    found.keep()
    crossings(found, options)


def loop(found: Found, options: Options) -> None:
    B, T, heads, D = 1, 256 if options.quick else 4096, 4, 32
    title = f"float32, B={B} T={T} H={heads} D={D}: the kernels against the reference loop, which runs once"
    for form, period in VARLA.items():
        x = work(form, B, T, heads, D, torch.float32)
        slow = Work(partial(varla.vla, refresh_every=period, backend="reference"), x.tensors, x.grad)
        Work(slow.call, [y[:, :40].detach().requires_grad_() for y in x.tensors], x.grad[:, :40]).both()  # warm-up
        for name, ours, theirs in (("forward", x.forward, slow.forward), ("forward+backward", x.both, slow.both)):
            ms, loop_ms = timing(ours, options.repeats).ms, once(theirs)
            found.add(title, form=form, **{"pass": name, "loop ms": loop_ms, "triton ms": ms, "speed-up": loop_ms / ms})
            found.goal(f"speed-up over the loop, {form}, {name}", loop_ms / ms, least=300)


def once(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start)


def crossings(found: Found, options: Options) -> None:
    title = f"forward ms, bf16, B=1 H={HEADS} D=128"
    lengths = [1024 << i for i in range(2 if options.quick else 7)]
    times: dict[str, list[float]] = {}
    sequential = sequential_kernel(found)
    for T in lengths:
        row: Row = {"T": T}
        for form in (*VARLA, *SOFTMAX):
            x = work(form, 1, T, HEADS, 128)
            row[form] = timing(x.forward, options.repeats).ms
            if sequential is not None and form in VARLA:
                try:
                    row[f"sequential, {form}"] = timing(sequential(x.tensors, VARLA[form]), options.repeats).ms
                except Exception as error:  # the chunk form is measured all the same
                    found.notes.append(f"sequential, {form}, T={T}: {text_of(error)}")
                    sequential = None
        found.add(title, **row)
        for form, ms in list(row.items())[1:]:
            times.setdefault(form, []).append(ms)
        torch.cuda.empty_cache()
        found.keep()
    for form in times:
        if form in SOFTMAX or len(times[form]) < len(lengths):
            continue
        for other in SOFTMAX:
            tokens = crossover(lengths, times[form], times[other])
            if form in VARLA:
                found.goal(f"tokens where {form} passes {other}", tokens, most=12_000)
            else:
                found.notes.append(f"{form} passes {other} at {cell(tokens)} tokens")


def crossover(lengths: Sequence[int], ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The length from which on ours stay quicker, between two measured ones on logarithmic scales. None: nowhere.

    The shortest length measured, if they are quicker from there on.
    """
    gaps = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    if gaps[-1] >= 0:
        return None
    last = max((i for i, gap in enumerate(gaps) if gap >= 0), default=-1)
    if last < 0:
        return float(lengths[0])
    part = gaps[last] / (gaps[last] - gaps[last + 1])
    return float(lengths[last] * (lengths[last + 1] / lengths[last]) ** part)


def sequential_kernel(found: Found) -> Callable[[list[Tensor], int | None], Callable[[], object]] | None:
    """The paper's fused kernel as (inputs, refresh period) -> a call, where there is one."""
    try:
        kernel = import_module("varla.ops.triton.sequential").vla_sequential
    except (ImportError, AttributeError) as error:
        found.notes.append(f"the sequential kernel was not measured: {text_of(error)}")
        return None
    from varla.ops.settings import VLASettings

    def prepared(tensors: list[Tensor], period: int | None) -> Callable[[], object]:
        q, k, v, u = (x.detach() for x in tensors)
        _, state = varla.vla(*(x[:, :0] for x in (q, k, v, u)), return_state=True)
        defaults = {name: each.default for name, each in inspect.signature(varla.vla).parameters.items()}
        chosen = {name: defaults[name] for name in VLASettings.__dataclass_fields__}
        settings = VLASettings(**{**chosen, "refresh_every": period, "penalty_scale": q.shape[-1] ** -0.5})
        return partial(kernel, q, k, v, u, state, settings)

    return prepared


def decode(found: Found, options: Options) -> None:
    """One token for a batch of states: S and A are read and written once each, whatever the position."""
    if "inplace" not in inspect.signature(varla.vla_step).parameters:
        found.notes.append("not measured: varla.vla_step has no `inplace`")
        return
    B, D, steps = 64, 128, 20
    q, k, v, u = (torch.randn(B, HEADS, D, device=DEVICE, dtype=torch.bfloat16) for _ in range(4))
    _, state = varla.vla(*(x[:, None] for x in (q, k, v, u)), return_state=True)
    traffic = 2 * (state.S.nbytes + state.A.nbytes)
    copy = copy_rate(options.repeats)

    def step() -> object:
        with torch.no_grad():
            return varla.vla_step(q, k, v, u, state, inplace=True)  # type: ignore[call-arg, unused-ignore]

    eager = timing(step, options.repeats)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(steps):
            step()
    title = f"bf16, B={B} H={HEADS} D={D}: {steps} tokens in a CUDA graph, {traffic / 1e6:.0f} MB of state each"
    latencies, rates = [], []
    for position in (0, 1_000, 1_000_000):
        state.t.fill_(position)
        us = 1e3 * timing(graph.replay, options.repeats).ms / steps
        latencies.append(us)
        rates.append(traffic / us / 1e3)
        found.add(title, position=position, **{"us a token": us, "GB/s": rates[-1], "copy GB/s": copy})
    found.notes.append(f"without a graph: {1e3 * eager.ms:.1f} us a token, {1e3 * eager.host:.1f} us of it on the host")
    found.goal("state traffic over copy bandwidth", min(rates) / copy, least=0.5)
    found.goal("slowest position over quickest", max(latencies) / min(latencies), most=1.1)


def linear(found: Found, options: Options) -> None:
    B, heads, D = 1, 4, 64
    lengths = [8192 << i for i in range(2 if options.quick else 6)]
    title = f"nanoseconds a token, bf16, B={B} H={heads} D={D}"
    for T in lengths:
        row: Row = {"T": T}
        for form in VARLA:
            x = work(form, B, T, heads, D)
            row[f"{form}, forward"] = 1e6 * timing(x.forward, options.repeats).ms / T
            row[f"{form}, both"] = 1e6 * timing(x.both, options.repeats).ms / T
        found.add(title, **row)
        found.keep()
    rows = found.tables[title]
    for key in list(rows[0])[1:]:
        values = [row[key] for row in rows]
        found.goal(f"largest over smallest, {key}", max(values) / min(values), most=1.1)
        found.notes.append(f"{key}: T={lengths[-1]} over T={lengths[0]}: {values[-1] / values[0]:.2f}")
    train(found, options)


def train(found: Found, options: Options) -> None:
    """A training step of the paper's model; `deltanet` is the chunk form in PyTorch, which has no kernels here."""
    task = {"name": "mqar", "n": 24}
    times = {}
    for name in ("deltanet", "vla"):
        step = train_step.step({"mechanism": name, "task": task}, device=DEVICE)
        times[name] = timing(step, options.repeats).ms
        found.add("training step, preset paper, mqar n=24, batch 64", mechanism=name, ms=times[name])
    found.goal("training step, vla / deltanet", times["vla"] / times["deltanet"], most=1.5)


# Imports no more than a user would, so that the seconds are theirs.
COLD = """
import sys, time
started, D = float(sys.argv[1]), int(sys.argv[2])
import json, os, torch, varla
def both(B, T, refresh_every, lengths=None):
    x = [torch.randn(B, T, 4, D, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(4)]
    cu_seqlens = None if lengths is None else torch.tensor([0, *lengths], device="cuda").cumsum(0)
    varla.vla(*x, refresh_every=refresh_every, cu_seqlens=cu_seqlens, backend="triton").sum().backward()
    torch.cuda.synchronize()
def files():
    return sum(len(names) for *_, names in os.walk(os.environ["TRITON_CACHE_DIR"]))
marks = [started, time.time()]
for period in (20, None):
    both(2, 1024, period)
    marks.append(time.time())
new, known = {}, files()
shapes = [(1, 1), (3, 17), (1, 64), (5, 300), (1, 1000), (4, 2048), (1, 16384), (1, 1000, (3, 0, 700, 297))]
for period in (20, None):
    for B, T, *lengths in shapes:
        both(B, T, period, *lengths)
        new[f"B={B} T={T} refresh {period}" + (" packed" if lengths else "")] = files() - known
        known = files()
print(json.dumps({"marks": [b - a for a, b in zip(marks, marks[1:])], "files": known, "new": new}))
"""


def cold(found: Found, options: Options) -> None:
    """Fresh processes with an empty compile cache."""
    for D in (64,) if options.quick else (64, 128):
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", COLD, str(time.time()), str(D)]
            surroundings = {**os.environ, "TRITON_CACHE_DIR": folder}
            done = subprocess.run(
                command, cwd=ROOT, env=surroundings, capture_output=True, text=True, timeout=150, check=False
            )
        if done.returncode:
            found.notes.append(f"D={D}: {' '.join(done.stderr.split())[-300:]}")
            found.goal(f"D={D}: seconds to the first forward+backward", None, most=20)
            continue
        values = json.loads(done.stdout.splitlines()[-1])
        cold_found(found, D, values)
        found.keep()


def cold_found(found: Found, D: int, values: Row) -> None:
    imports, first, more = values["marks"]
    new = {shape: count for shape, count in values["new"].items() if count}
    found.add(
        "seconds, bf16, H=4, from the start of a process with an empty compile cache",
        **{"D": D, "to imports": imports, "to first answer": imports + first, "more without refresh": more},
        **{"cache files": values["files"], "new with other B and T": sum(new.values())},
    )
    found.goal(f"D={D}: seconds to the first forward+backward", imports + first, most=20)
    found.goal(f"D={D}: cache files that other B and T add", float(sum(new.values())), most=0)
    found.notes += [f"D={D}: {count} new cache files for {shape}" for shape, count in new.items()]


# The peers' section last: see `speed`.
SECTIONS: dict[str, Callable[[Found, Options], None]] = {
    "accuracy": accuracy,
    "paper": paper,
    "decode": decode,
    "linear": linear,
    "cold": cold,
    "speed": speed,
}


def refusal(name: str, quick: bool) -> str | None:
    """Why a section cannot run here; None if it can."""
    if not torch.cuda.is_available() and name != "accuracy":
        return "it measures time on a CUDA GPU, and there is none here"
    reason = varla.backends()["triton"].reason
    if reason is None and not torch.cuda.is_available() and not quick:
        return "in Triton's interpreter it would take hours: add --quick"
    return reason


def run(name: str, options: Options) -> Found:
    """One section. Whatever goes wrong in it is recorded, and the others go on."""
    found = Found()
    start = time.perf_counter()

    def keep() -> None:
        found.seconds = time.perf_counter() - start
        if not options.quick and found.tables:  # an earlier measurement is worth more than an error
            save(name, found)

    found.keep = keep
    try:
        SECTIONS[name](found, options)
    except Exception as error:
        found.error = text_of(error)
    keep()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, metavar="SECTION", help=f"of: {', '.join(SECTIONS)}")
    parser.add_argument("--quick", action="store_true", help="few repeats, shapes and lengths; nothing is written")
    parser.add_argument("--peers", help="folder with the peers' packages unpacked (fla-core, einops)")
    given = parser.parse_args(arguments)
    options = Options(given.quick, given.peers and str(Path(given.peers).resolve()))
    chosen = [name for name in SECTIONS if name in (given.only or SECTIONS)]
    refused = {name: reason for name in chosen if (reason := refusal(name, options.quick)) is not None}
    for name, reason in refused.items():
        print(f"{name}: skipped: {reason}")
    chosen = [name for name in chosen if name not in refused]
    compile_all([job for name in chosen for job in JOBS.get(name, [])], options.peers)
    errors = []
    for name in chosen:
        found = run(name, options)
        errors += [name] if found.error else []
        print(f"\n{render(name, found)}", flush=True)
    return 1 if refused or errors else 0


if __name__ == "__main__":
    sys.exit(main())
