"""Section `sanitizer`: one shape of each kernel under NVIDIA's compute-sanitizer, which checks every memory access."""

import json
import re
import shutil
import subprocess
import sys

from benchmarks.gpu import ROOT
from benchmarks.gpu.record import Findings, Options

LIMIT = 240.0  # seconds
DIRECTLY = (  # kernels that are not launched by a Launcher
    "decode_token", "fade", "walk_tokens", "recurrent_forward", "recurrent_backward", "convolve_forward",
    "convolve_slopes", "convolve_turned", "convolve_before_backward",
    "norm_forward", "norm_backward", "rotate_rows", "gate_forward", "gate_backward",
    "features_forward", "features_backward",
)  # fmt: skip

# Small shapes that together launch every kernel: few heads and many, one span and several, and single tokens.
CALLS = """
import json, torch, varla
from varla.ops.rotary import angles
from varla.ops.vla import VLASettings
from varla.ops.triton.convolution import convolve
from varla.ops.triton.gate import gate as silu_gate
from varla.ops.triton.norm import normalize
from varla.ops.triton.rotary import turn
from varla.ops.triton.launcher import Launcher
from reproduction.sequential import vla_sequential

names, launch = set(), Launcher.launch
def launch_and_note(self, kernel, *arguments, **options):
    names.add(kernel.__name__)
    launch(self, kernel, *arguments, **options)
Launcher.launch = launch_and_note

def gates(B, T, H, dtype=torch.float32, **others):
    values = {"beta": 1, "decay": -1, "strength": 1, **others}
    return {k: (s * torch.rand(B, T, H, device="cuda", dtype=dtype)).requires_grad_() for k, s in values.items()}

def both(B, T, H, D, dtype, given=None, **options):
    x = [torch.randn(B, T, H, D, device="cuda", dtype=dtype, requires_grad=True) for _ in range(4)]
    given = given or {}
    o, state = varla.vla(*x, **given, return_state=True, backend="triton", **options)
    (o.float().sum() + sum(y.sum() for y in (state.S, state.A, state.z))).backward()
    return [y.detach() for y in x], state.detach()

for period in (20, None):
    both(1, 1100, 1, 64, torch.bfloat16, refresh_every=period)
    x, state = both(2, 90, 2, 32, torch.float32, refresh_every=period)
both(1, 90, 2, 16, torch.float32, update_penalty=False, normalizer=False)
for period in (20, None):
    both(2, 190, 2, 64, torch.bfloat16, gates(2, 190, 2, torch.bfloat16), refresh_every=period)
forgetting = {"refresh_every": None, "forget_at": "beat", "beat": 64}
y, held = both(2, 192, 2, 32, torch.float32, gates(2, 192, 2, forget=-0.1), **forgetting)
with torch.no_grad():
    token = {k: g[:, 0] for k, g in gates(2, 1, 2, forget=-0.1).items()}
    varla.vla_step(*(each[:, 0] for each in y), held, backend="triton", **token, **forgetting)
    varla.vla_step(*(y[:, 0] for y in x), state, backend="triton")
    varla.vla_step(*(y[:, 0] for y in x), state, backend="triton", **{k: g[:, 0] for k, g in gates(2, 1, 2).items()})
    vla_sequential(*x, state, VLASettings())

def other(mechanism, T, D, Dv, *gate):
    x = [torch.randn(1, T, 3, n, device="cuda", requires_grad=True) for n in (D, D, Dv)]
    o, state = mechanism(*x, *gate, return_state=True, backend="triton")
    (o.sum() + state.S.sum()).backward()

for T in (37, 2100):  # token by token, and in chunks
    gate = torch.rand(1, T, 3, 96, device="cuda", requires_grad=True)
    other(varla.linear_attention, T, 16, 50)
    other(varla.delta_rule, T, 64, 16, gate[..., 0])
    x = [torch.randn(1, T, 3, n, device="cuda", requires_grad=True) for n in (16, 16, 50)]
    varla.delta_rule(*x, gate[..., 0], decay=-gate[..., 1], backend="triton").sum().backward()
other(varla.decayed_delta_rule, T, 48, 96, -gate)

for bounds in (None, torch.tensor([0, 1, 1, 40])):
    x = [torch.randn(*shape, device="cuda", requires_grad=True) for shape in ((1, 40, 70), (70, 4), (70,), (3, 3, 70))]
    x[3] = x[3] if bounds is not None else x[3][:1]
    convolve(*x, bounds).sum().backward()

for N in (70, 3000):
    x, weight = (torch.randn(*shape, device="cuda", requires_grad=True) for shape in ((33, N), (N,)))
    silu_gate(normalize(x, weight, 1e-6, x.dtype), x).sum().backward()
x = torch.randn(2, 21, 3, 22, device="cuda", requires_grad=True)
turn(x, *angles(torch.arange(21, device="cuda")[None], 22, 1e4, x.dtype), False).sum().backward()
torch.cuda.synchronize()
print(json.dumps(sorted(names)))
"""


def launched() -> set[str]:
    """The names of the kernels that the launchers launch, from the text of their code."""
    files = (ROOT / "src/varla/ops" / f"{name}.py" for name in ("directions/triton/launch", "memory/triton/launch"))
    text = "".join(file.read_text() for file in files)
    return {"running_sum"} | set(re.findall(r"self\.launch\(\s*\w+\.(\w+)", text))


def run(found: Findings, options: Options) -> None:
    """Run the calls alone first, so that nothing is compiled under the sanitizer."""
    if shutil.which("compute-sanitizer") is None:
        found.notes.append("not run: there is no compute-sanitizer here")
        return
    command = [sys.executable, "-W", "ignore", "-c", CALLS]
    alone = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    if alone.returncode:
        raise RuntimeError(f"the calls fail by themselves: {' '.join(alone.stderr.split())[-200:]}")
    missing = launched() - set(json.loads(alone.stdout.splitlines()[-1]))
    found.goal("kernels that were not launched", float(len(missing)), most=0)
    found.notes += [f"not launched: {name}" for name in sorted(missing)]
    done = subprocess.run(
        ["compute-sanitizer", *command], cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    report = done.stdout + done.stderr
    errors = errors_in(report)
    found.add(
        "compute-sanitizer, memcheck", kernels=len(launched()) + len(DIRECTLY), errors=errors, status=done.returncode
    )
    found.goal("errors that compute-sanitizer finds", errors, most=0)
    if errors != 0:
        found.notes.append(" ".join(report.split())[:600])


def errors_in(report: str) -> float | None:
    """The number of errors that the sanitizer reports; None if it did not finish."""
    summary = re.search(r"ERROR SUMMARY: (\d+) error", report)
    return None if summary is None else float(summary[1])
