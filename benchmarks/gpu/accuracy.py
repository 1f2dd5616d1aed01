"""Section `accuracy`: errors of the kernels against float64, reproducible bits, no reads of uninitialised memory."""

import math
import multiprocessing
import os
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import varla
from benchmarks.gpu.record import Findings, Options, Row, text_of

BOUNDS: dict[str, float | None] = {"float32": 2e-5, "bfloat16": 1e-2, "float16": None}
OVER = "over the bound; with inputs half a unit off, in float64; and by the chunk form in float32, on the CPU"


@dataclass(frozen=True)
class Case:
    """One shape to check. keys "near": keys and directions are nearly parallel; "same": all are equal."""

    B: int
    T: int
    H: int
    D: int
    Dv: int = 0  # 0: equal to D
    keys: str = "random"
    state: bool = False  # True: a state is given and returned, and both have gradients
    lengths: tuple[int, ...] = ()  # of packed sequences, T in total
    refresh_every: int | None = 20
    options: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        """The shape, and every option that is not the default."""
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
    """([q, k, v, u], [S, A, z] or [], gradients of outputs and state), on the CPU, rounded to `dtype`."""
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
        state = [randn(rows, case.H, Dv, D), A, randn(rows, case.H, D).abs().double()]
        gradients += [randn(x.shape).to(x.dtype) for x in state]
    return [x.to(dtype) for x in (q, k, v, u)], state, gradients


def results_of(
    case: Case, given: Sequence[Sequence[Tensor]], backend: str, device: str, dtype: torch.dtype | None = None
) -> dict[str, Tensor]:
    """Outputs and gradients by name. With `dtype`, all tensors but those in float64 are converted to it first."""

    def converted(x: Tensor) -> Tensor:
        return x.detach().to(device, x.dtype if dtype is None or x.dtype == torch.float64 else dtype)

    inputs, state, gradients = ([converted(x) for x in group] for group in given)
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
    """Inside, torch.empty is filled with NaN, so that reads of uninitialised memory show."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)


def poison_allocator() -> None:
    """Fill the memory that PyTorch's allocator will return next with NaN."""
    torch.cuda.empty_cache()
    sizes = [2**28, *[2**17] * 64]  # in floats: from the pool of large blocks, and from that of small ones
    filled = [torch.full((size,), math.nan, device="cuda") for size in sizes]
    del filled


def check_case(case: Case, dtype_name: str, seed: int) -> Row:
    """Relative errors against float64, whether a second run gives the same bits, and NaN found with poisoned memory.

    The float64 result is that of the chunk form on the CPU: its batched Cholesky factorisations are ten times faster
    there than on a GPU.
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
        bound = BOUNDS[dtype_name]
        if bound is not None and not all(error <= bound for error in row["errors"].values()):
            dtype = getattr(torch, dtype_name)
            near = results_of(case, moved(given, dtype, seed), "chunk", "cpu", torch.float64)
            plain = results_of(case, given, "chunk", "cpu", torch.float32)
            row["moved"] = {name: relative(near[name], wanted[name]) for name in wanted}
            row["plain"] = {name: relative(plain[name], wanted[name]) for name in wanted}
    except Exception as error:  # the other cases continue
        row["error"] = text_of(error)
    return row


def moved(given: Sequence[Sequence[Tensor]], dtype: torch.dtype, seed: int) -> list[list[Tensor]]:
    """The same with every input changed by half a unit in the last place: no result can be more accurate than that."""
    generator = torch.Generator().manual_seed(seed)
    inputs, *rest = given
    half = torch.finfo(dtype).eps / 2
    signs = [2.0 * torch.randint(0, 2, x.shape, generator=generator) - 1 for x in inputs]
    return [[x.double() * (1 + half * sign) for x, sign in zip(inputs, signs, strict=True)], *map(list, rest)]


def relative(got: Tensor, wanted: Tensor) -> float:
    size = wanted.norm()
    return float((got.cpu().double() - wanted).norm() / (size if size > 0 else 1.0))


def check_group(group: Sequence[tuple[Case, str, int]]) -> list[Row]:
    torch.set_num_threads(1)
    return [check_case(*job) for job in group]


def run(found: Findings, options: Options) -> None:
    """Check every case in every dtype. Cases that share kernels share a process; processes compile in parallel."""
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


def judge(found: Findings, rows: list[Row]) -> None:
    found.details += rows
    found.tables = {"relative error by norm against float64, worst of each type": worst(found.details)}
    if excess := over(found.details):
        found.tables[OVER] = excess
    found.goals = goals(found.details)
    found.notes += [f"{row['type']}, {row['case']}: {row['error']}" for row in rows if "error" in row]
    found.keep()


def over(rows: list[Row]) -> list[Row]:
    """Every error above its bound, with two errors to compare it to."""
    return [
        {"type": row["type"], "case": row["case"], "of": name, "error": error}
        | {"inputs moved": row["moved"][name], "chunk form": row["plain"][name]}
        for row in rows
        if "moved" in row
        for name, error in row["errors"].items()
        if not error <= (BOUNDS[row["type"]] or math.inf)
    ]


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


def goals(rows: list[Row]) -> list[Row]:
    found = Findings()
    for line in worst(rows):
        bound = BOUNDS[line["type"]]
        for what in ("outputs", "gradients") if bound is not None else ():
            found.goal(f"{line['type']}, {what}", None if line["failed"] else line[what], most=bound)
    found.goal("shapes", float(len({row["case"] for row in rows})), least=30)
    found.goal("not the same bits twice", float(sum(not row.get("same bits", False) for row in rows)), most=0)
    found.goal("NaN from poisoned memory", float(sum(row.get("NaN", 1) for row in rows)), most=0)
    return found.goals
