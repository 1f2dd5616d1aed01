"""What float32 (and less) costs: long sequences, hard keys, two hundred thousand tokens."""

from dataclasses import replace

import pytest
import torch

import varla
from tests.ops.cases import error, randn
from varla.ops.directions.settings import DirectionSettings

KEYS = ("random", "repeated", "nearly parallel")


def hard_inputs(T, D, H=2):
    """q, k, v, u [3, T, H, D] float32; each batch row has keys and penalty directions of its own kind."""
    q, k, v, u = (randn(3, T, H, D, seed=i) for i in range(4))
    choice = torch.randint(8, (T, H), generator=torch.Generator().manual_seed(5))
    for x, seed in ((k, 10), (u, 20)):
        x[1] = randn(8, D, seed=seed)[choice]
        x[2] = randn(D, seed=seed + 1) + 1e-3 * x[2]
    return [x.float() for x in (q, k, v, u)]


def root_mean_square_error(got, wanted):
    return float((got.double() - wanted).norm() / wanted.norm())


# At D = 64 the loop's own gradients would take 8 GB and a minute. In float64 both forms agree to 1e-12 (test_forms.py).
@pytest.mark.parametrize(("D", "exact"), [(32, "reference"), (64, "chunk")])
def test_float32_chunk_against_float64_at_8192_tokens(D, exact):
    inputs = hard_inputs(8192, D, H=1)
    do = randn(3, 8192, 1, D, seed=9)
    results = []
    for dtype, backend in ((torch.float32, "chunk"), (torch.float64, exact)):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        o = varla.vla(*leaves, backend=backend)
        results.append([o.detach(), *torch.autograd.grad(o, leaves, do.to(dtype))])
    for name, got, wanted in zip(("o", "dq", "dk", "dv", "du"), *results, strict=True):
        bound = 1e-5 if name == "o" else 5e-5
        for row, kind in enumerate(KEYS):
            assert error(got[row], wanted[row]) <= bound, (name, kind)
            assert root_mean_square_error(got[row], wanted[row]) <= bound, (name, kind)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_low_precision_inputs_keep_float32_states(dtype, backend):
    """The only loss is the rounding of the inputs, which the reference is given too, and of the output."""
    inputs = [x.to(dtype) for x in hard_inputs(300, 16)]
    leaves = [x.clone().requires_grad_() for x in inputs]
    o, state = varla.vla(*leaves, return_state=True, backend=backend)
    grads = torch.autograd.grad(o.float().square().sum(), leaves)
    wanted, exact = varla.vla(*(x.double() for x in inputs), return_state=True, backend="reference")
    assert o.dtype == dtype
    assert all(grad.dtype == dtype and grad.isfinite().all() for grad in grads)
    assert [x.dtype for x in state.tensors().values()] == [torch.float32, torch.float32, torch.float64, torch.int64]
    assert error(o, wanted) <= torch.finfo(dtype).eps
    for name in ("S", "A", "z"):
        assert error(getattr(state, name), getattr(exact, name)) <= 1e-5


@pytest.mark.parametrize("gain", ["raw", "unit", "projection"])
@pytest.mark.parametrize("backend", ["reference", "chunk"])
def test_float32_holds_the_least_penalty(backend, gain):
    """Recursive least squares at the smallest lambda0 that float32 allows, for random and for nearly parallel keys."""
    q, k, v, _ = hard_inputs(200, 16)
    options = {"lambda0": 9.8e-4, "penalty_scale": 1.0, "refresh_every": None, "gain": gain}
    options |= {"feature_map": "identity", "normalizer": False}
    o, state = varla.vla(q, k, v, k, backend=backend, return_state=True, **options)
    inputs = [x.double() for x in (q, k, v, k)]
    wanted, exact = varla.vla(*inputs, backend="reference", return_state=True, **options)
    for row, bound in enumerate((5e-4, 2e-3, 1e-2 if gain == "projection" else 2e-3)):
        assert root_mean_square_error(o[row], wanted[row]) <= bound, KEYS[row]
        assert root_mean_square_error(state.A[row], exact.A[row]) <= 2e-4, KEYS[row]


LEAST = {"lambda0": 9.8e-4, "refresh_every": None, "feature_map": "identity", "gain": "raw", "return_state": True}


def with_lengths(strong, k):
    """Two ways to say |u| = 1."""
    return {"strength": torch.ones(k.shape[:-1], dtype=k.dtype)} if strong else {"penalty_scale": 1.0}


@pytest.mark.parametrize("D", [1, 2, 4, 16])
@pytest.mark.parametrize(
    "call", [{"backend": "reference"}, {"backend": "chunk"}, {"backend": "chunk", "chunk_size": 64}]
)
def test_every_form_has_the_promised_error_at_the_least_penalty(call, D):
    """`DirectionSettings.check_precision`: an error of 20 eps / lambda0 in A k."""
    _, k, _, _ = hard_inputs(200, D)
    a, _ = varla.directions(k, k, **call, **LEAST, penalty_scale=1.0)
    wanted, _ = varla.directions(k.double(), k.double(), backend="reference", **LEAST, penalty_scale=1.0)
    assert (a - wanted).norm(dim=-1).max() <= 20 * torch.finfo(torch.float32).eps / LEAST["lambda0"]


@pytest.mark.parametrize("strong", [False, True], ids=["penalty_scale", "strength"])
@pytest.mark.parametrize("T", [8, 16, 32, 64])
@pytest.mark.parametrize("D", [1, 2, 4])
def test_a_chunk_costs_no_digits_at_the_least_penalty(D, T, strong):
    """n tokens of one chunk lose n times as much as one: chunks are short there, whatever chunk_size says."""
    _, k, _, _ = hard_inputs(T, D)
    k = k[:2]  # penalties in all directions
    _, state = varla.directions(k, k, backend="chunk", chunk_size=64, **LEAST, **with_lengths(strong, k))
    double = k.double()
    _, exact = varla.directions(double, double, backend="reference", **LEAST, **with_lengths(strong, double))
    for row in range(2):
        assert root_mean_square_error(state.A[row], exact.A[row]) <= 1e-3, KEYS[row]


def test_closed_gates_cost_no_digits():
    """Decays through many closed gates: only gates between two tokens count, not those before both."""
    q, k, v, gate = (randn(1, 130, 2, 16, seed=i) for i in range(4))
    gate = -0.1 * gate.abs()
    gate[:, 5::2] = torch.tensor([-100.0, -1000.0]).repeat(32)[: gate[:, 5::2].shape[1], None, None]
    inputs = [x.float().requires_grad_() for x in (q, k, v, gate)]
    exact = [x.detach().double().requires_grad_() for x in inputs]
    o, wanted = (varla.decayed_delta_rule(*x, backend=b) for x, b in ((inputs, "chunk"), (exact, "reference")))
    assert error(o, wanted) <= 1e-6
    found, right = (torch.autograd.grad(y.square().sum(), x) for y, x in ((o, inputs), (wanted, exact)))
    for got, want in zip(found, right, strict=True):
        assert error(got, want) <= 2e-6


@pytest.mark.parametrize("pieces", [[1] * 20, [20], [64] * 3])
def test_the_normaliser_grows_after_a_hundred_million_tokens(pieces):
    """In float32 a sum of ones stops at 2**24."""
    D, seen = 8, 100_000_000
    start = varla.VLAState.zeros({"B": 1, "H": 1, "D": D, "Dv": D}, torch.float32, torch.device("cpu"))
    state = varla.VLAState(start.S, start.A + 10 * torch.eye(D), start.z + 0.9 * seen, start.t + seen)
    total = sum(pieces)
    inputs = [randn(1, total, 1, D, seed=i, dtype=torch.float32) for i in range(4)]
    begun = state.z
    for part in zip(*(x.split(pieces, 1) for x in inputs), strict=True):
        if pieces[0] == 1:
            _, state = varla.vla_step(*(x[:, 0] for x in part), state)
        else:
            _, state = varla.vla(*part, initial_state=state, return_state=True)
    features = torch.nn.functional.elu(inputs[1].double()) + 1
    assert error(state.z - begun, features.sum(1)) <= 1e-6
    assert state.t.tolist() == [seen + total]


def long_inputs():
    return [randn(1, 200_000, 1, 16, seed=i, dtype=torch.float32) for i in range(4)]


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"refresh_every": None, "penalty_scale": 1.0}], ids=["paper", "no refresh"])
def test_two_hundred_thousand_tokens_in_pieces_do_not_drift(options):
    """Float32 in uneven pieces against float64 in one go; A stays positive definite."""
    inputs = long_inputs()
    state, outputs, cut = None, [], 0
    for length in [1, 63, 20, 4097] * 48:
        o, state = varla.vla(
            *(x[:, cut : cut + length] for x in inputs), initial_state=state, return_state=True, **options
        )
        outputs.append(o)
        cut += length
        check_positive_definite(state.A)
    assert cut >= 200_000
    check_close(torch.cat(outputs, 1), state, inputs, options)


def traced_loop(state, inputs):
    """The loop over tokens as a graph, which takes half the time of the same operations called from Python."""

    def loop(q, k, v, u, *tensors):
        state = varla.VLAState(*tensors)
        options = {"backend": "reference", "return_state": True, "penalty_scale": 0.25}  # the default: 16**-0.5
        o, after = varla.vla(q, k, v, u, initial_state=state, **options)
        return o, *after.tensors().values()

    return torch.jit.trace(loop, (*inputs, *state.tensors().values()), check_trace=False)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated", "ignore::torch.jit.TracerWarning")
@torch.inference_mode()  # a quarter less time than torch.no_grad()
def test_two_hundred_thousand_steps_do_not_drift():
    """A traced loop takes the place of vla_step, which is slow to call; it gives the same bits wherever both run."""
    inputs = long_inputs()
    pieces = list(zip(*(x.split(20, 1) for x in inputs), strict=True))
    o, state = varla.vla(*pieces[0], return_state=True, backend="reference")
    loop = traced_loop(state, pieces[1])
    outputs = [o]
    for number, piece in enumerate(pieces[1:], 1):
        o, *tensors = loop(*piece, *state.tensors().values())
        before, state = state, varla.VLAState(*tensors)
        outputs.append(o)
        if number % 50 == 0:
            check_positive_definite(state.A)
        if number < 10 or number % 1000 in (998, 999):
            check_steps(piece, before, o, state)
    check_close(torch.cat(outputs, 1), state, inputs, {})


def check_steps(inputs, state, wanted, after):
    outputs = []
    for token in zip(*(x.unbind(1) for x in inputs), strict=True):
        o, state = varla.vla_step(*token, state)
        outputs.append(o)
    assert torch.equal(torch.stack(outputs, 1), wanted)
    for name, x in state.tensors().items():
        assert torch.equal(x, getattr(after, name)), name


def check_positive_definite(A):
    assert torch.equal(A, A.mT)
    assert torch.linalg.eigvalsh(A.double()).min() > 0


def check_close(o, state, inputs, options):
    wanted, exact = varla.vla(*(x.double() for x in inputs), return_state=True, backend="chunk", **options)
    # Outputs shrink like 1 / t: compare each stretch of tokens with its own magnitude.
    for got, want in zip(o.split(10_000, 1), wanted.split(10_000, 1), strict=True):
        assert error(got, want) <= 1e-4
    for name in ("S", "A", "z"):
        assert error(getattr(state, name), getattr(exact, name)) <= 1e-4, name
    assert torch.equal(state.t, exact.t)


def test_chunks_get_shorter_near_the_least_lambda0():
    least = 8192 * torch.finfo(torch.float32).eps  # for |u| = 1
    for times, longest in ((1, 8), (1.2, 9), (4, 32), (100, 800)):
        settings = DirectionSettings(lambda0=times * least, penalty_scale=1.0)
        assert settings.longest_chunk(4, torch.float32) == longest
        assert settings.longest_chunk(4, torch.float64) > 1e9
        assert replace(settings, penalty_scale=None).longest_chunk(4, torch.float32) == pytest.approx(
            4 * longest, abs=4
        )
        assert replace(settings, update_penalty=False).longest_chunk(4, torch.float32) > 1e9


@pytest.mark.parametrize(
    ("strength", "longest"), [(1.0, 8), (0.25, 32), (0.0, None), (torch.nan, None), (torch.inf, 8)]
)
def test_strengths_say_how_long_a_chunk_may_be(strength, longest):
    settings = DirectionSettings(lambda0=8192 * torch.finfo(torch.float32).eps)
    found = settings.longest_chunk(4, torch.float32, torch.tensor([0.0, strength]))
    assert found == longest if longest else found > 1e9
