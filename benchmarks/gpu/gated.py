"""Section `gated`: what the gates cost. Operators with and without them, and a training step, in one run."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

import varla
from benchmarks import train_step
from benchmarks.gpu import forms, speed, timing
from benchmarks.gpu.record import Findings, Options, Row
from benchmarks.gpu.speed import BOTH, FORWARD, shape_name, speed_of

FEATURES: dict[str, Any] = {"feature_map": "silu", "normalize_query": True, "scale": None, "backend": "triton"}
ALONG: dict[str, Any] = {**FEATURES, "normalizer": False, "refresh_every": None}
FORGETTING: dict[str, Any] = {"forget_at": "beat", "beat": 256}  # as the layer forgets
# Which gates each form has, and its call.
FORMS: dict[str, tuple[tuple[str, ...], Callable[..., Tensor]]] = {
    "delta rule": (("beta",), partial(varla.delta_rule, **FEATURES)),
    "gated delta rule": (("beta", "decay"), partial(varla.delta_rule, **FEATURES)),
    "vla": (("u",), partial(varla.vla, **ALONG)),
    "gated vla": (("u", "beta", "decay", "strength"), partial(varla.vla, **ALONG)),
    "gated vla, forgetting": (("u", "beta", "decay", "strength", "forget"), partial(varla.vla, **ALONG, **FORGETTING)),
}
STEPS = ("deltanet", "gated-deltanet", "vla", "gated-vla")
# (form, the form it is compared with, the most that was asked for).
RATIOS = (
    ("gated delta rule", "delta rule", 1.10),
    ("gated vla", "gated delta rule", 1.35),
    ("gated vla, forgetting", "gated delta rule", 1.35),
    ("gated vla", "vla", None),
    ("gated vla, forgetting", "gated vla", None),
)
STEP_RATIOS = (("gated-deltanet", "deltanet", 1.10), ("gated-vla", "gated-deltanet", 1.35))


def run(found: Findings, options: Options) -> None:
    """Time every form at the shapes of section `speed`, then a training step of every mechanism."""
    title = f"bf16, H={forms.HEADS}; silu features of unit length, no normaliser, no refresh"
    for D, B, T in speed.SPEED:
        rows: dict[str, Row] = {}
        for form in FORMS:
            torch.cuda.empty_cache()
            rows[form] = speed_of(work(form, B, T, forms.HEADS, D), options.repeats)
            found.add(title, shape=shape_name(D, B, T), form=form, **rows[form])
            found.keep()
        for form, other, most in RATIOS:
            for key in (FORWARD, BOTH):
                ratio = rows[form][key] / rows[other][key]
                if most is None:
                    found.notes.append(f"{shape_name(D, B, T)}, {key}: {form} / {other} {ratio:.2f}")
                else:
                    found.goal(f"{shape_name(D, B, T)}, {form} / {other}, {key}", ratio, most=most)
    task = {"name": "mqar", "n": 24}
    times = {}
    for name in STEPS:
        step = train_step.step({"mechanism": name, "preset": "tuned", "task": task}, device=forms.DEVICE)
        times[name] = timing.timed(step, options.repeats).ms
        found.add("training step, preset tuned, mqar n=24, batch 64", mechanism=name, ms=times[name])
    for name, other, most in STEP_RATIOS:
        found.goal(f"training step, {name} / {other}", times[name] / times[other], most=most)


def work(form: str, B: int, T: int, heads: int, D: int, dtype: torch.dtype = torch.bfloat16) -> forms.Work:
    """A form with random inputs."""

    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, device=forms.DEVICE, dtype=dtype)

    names, call = FORMS[form]
    inputs = {name: leaf(B, T, heads, D) for name in ("q", "k", "v", "u")}
    inputs["beta"] = leaf(B, T, heads).sigmoid()
    inputs["decay"] = inputs["forget"] = logsigmoid(leaf(B, T, heads) + 5)
    inputs["strength"] = 0.1 * softplus(leaf(B, T, heads))
    given = ["q", "k", "v", *names]
    tensors = [inputs[name].detach().requires_grad_() for name in given]

    def named(*values: Tensor) -> Tensor:
        return call(**dict(zip(given, values, strict=True)))

    return forms.Work(named, tensors, torch.randn_like(tensors[2]))
