"""Section `mesa`: `varla.mesa` beside FLA's MesaNet: error against a solve in float64, time, and whether there is NaN.

Both read G (H + prior)^-1 q, with H and G decayed sums of beta k k^T and beta v k^T. MesaNet's prior does not decay,
and its conjugate gradients stop after 30 steps. Ours decays, is given back every `beat` tokens, and is solved exactly.
Each is held against its own definition.
"""

from collections.abc import Callable
from importlib import import_module

import torch
from torch import Tensor
from torch.nn.functional import normalize

import varla
from benchmarks.gpu import forms, timing
from benchmarks.gpu.record import Findings, Options, Row, text_of

BEAT, PRIOR = 32, 1.0
ERRORS = (2, 512, 4, 64)  # B, T, H, D
TIMES = (8, 4096, forms.HEADS, 64)
DECAYS = {"none": 0.0, "weak": -0.01, "strong": -0.1}  # mean log decay of a token
TYPES = (torch.float32, torch.bfloat16)
Inputs = dict[str, Tensor]


def ours(x: Inputs) -> Tensor:
    return varla.mesa(x["q"], x["k"], x["v"], x["beta"], decay=x["decay"], lambda0=PRIOR, beat=BEAT)


def peer(x: Inputs) -> Tensor:
    solve = import_module("fla.ops.mesa_net").chunk_mesa_net
    prior = torch.full(x["q"].shape[2:], PRIOR, device=x["q"].device)
    gates = (x["decay"].float(), x["beta"].float(), prior)
    o: Tensor = solve(x["q"], x["k"], x["v"], *gates, use_qk_l2norm_in_kernel=True)[0]
    return o


FORMS: dict[str, Callable[[Inputs], Tensor]] = {"varla.mesa": ours, "MesaNet": peer}


def run(found: Findings, options: Options) -> None:
    """Errors and times of both; the peer comes last, because an error in it may make the GPU unusable."""
    forms.see_peers(options.peers)
    for form in FORMS if options.peers else ["varla.mesa"]:
        for kind in DECAYS:
            for dtype in TYPES:
                row: Row = {"form": form, "decay": kind, "type": str(dtype).removeprefix("torch.")}
                try:
                    row.update(errors(form, inputs(*ERRORS, kind, dtype)))
                except Exception as error:  # a peer's failure is a result
                    row["error"] = text_of(error)
                found.add("relative error of the outputs by norm, B=2 T=512 H=4 D=64", **row)
        try:
            found.add("bf16, B=8 T=4096 H=16 D=64, weak decay", form=form, **times(form, options.repeats))
        except Exception as error:
            found.notes.append(f"{form}: {text_of(error)}")
        found.keep()
    table = next(iter(found.tables.values()))
    worst = max(row.get("error by norm", float("nan")) for row in table if row["form"] == "varla.mesa")
    found.goal("varla.mesa, worst error in bfloat16 and float32", worst, most=1e-2)


def inputs(B: int, T: int, H: int, D: int, kind: str, dtype: torch.dtype) -> Inputs:
    x = {name: torch.randn(B, T, H, D, device=forms.DEVICE, dtype=dtype) for name in "qkv"}
    x["beta"] = torch.rand(B, T, H, device=forms.DEVICE).to(dtype)
    x["decay"] = (2 * DECAYS[kind] * torch.rand(B, T, H, device=forms.DEVICE)).to(dtype)
    return x


def errors(form: str, x: Inputs) -> Row:
    got, wanted = FORMS[form](x).double(), solved(x, BEAT if form == "varla.mesa" else None)
    return {"error by norm": float((got - wanted).norm() / wanted.norm()), "finite": bool(got.isfinite().all())}


def solved(x: Inputs, beat: int | None) -> Tensor:
    """The outputs by a solve for every token, in float64. `beat` None: the prior does not decay."""
    q, k = (normalize(x[name].double(), dim=-1) for name in "qk")
    v, beta, decay = (x[name].double() for name in ("v", "beta", "decay"))
    H = q.new_zeros(*q[:, 0].shape, q.shape[-1])
    G = q.new_zeros(*q[:, 0].shape[:-1], v.shape[-1], q.shape[-1])
    prior = q.new_full(beta[:, 0].shape, PRIOR)
    outputs = []
    for t in range(q.shape[1]):
        d, w = decay[:, t].exp(), beta[:, t, :, None, None]
        H = d[..., None, None] * H + w * k[:, t, :, :, None] * k[:, t, :, None, :]
        G = d[..., None, None] * G + w * v[:, t, :, :, None] * k[:, t, :, None, :]
        if beat is not None:
            prior = d * (torch.full_like(prior, PRIOR) if t % beat == 0 else prior)
        answer = torch.linalg.solve(H + torch.diag_embed(prior[..., None].expand_as(q[:, t])), q[:, t])
        outputs.append((G @ answer[..., None])[..., 0])
    return torch.stack(outputs, 1)


def times(form: str, repeats: int) -> Row:
    x = inputs(*TIMES, "weak", torch.bfloat16)
    leaves = {name: each.detach().requires_grad_() for name, each in x.items()}
    grad = torch.randn_like(x["v"])

    def forward() -> Tensor:
        with torch.no_grad():
            return FORMS[form](x)

    def both() -> object:
        return torch.autograd.grad(FORMS[form](leaves), list(leaves.values()), grad)

    grads = torch.autograd.grad(FORMS[form](leaves), list(leaves.values()), grad)
    finite = all(bool(each.isfinite().all()) for each in grads)
    return {
        "forward ms": timing.timed(forward, repeats).ms, "both ms": timing.timed(both, repeats).ms,
        "peak MB": timing.peak_mb(both)[1], "finite gradients": finite,
    }  # fmt: skip
