"""The kernels with gates against the loop in float64: on a GPU where there is one, else in Triton's interpreter."""

from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid, softplus

import varla
from tests.ops.cases import of_type, randn, vla_inputs, vla_state, with_gradients
from tests.ops.triton.cases import DEVICE, assert_near, gpu, relative, state_on

pytest.importorskip("triton")

NO_REFRESH: dict[str, Any] = {"refresh_every": None}
# Gated VLA as the layer calls it.
GATED: dict[str, Any] = {
    "feature_map": "silu", "normalize_query": True, "scale": None, "normalizer": False, **NO_REFRESH
}  # fmt: skip
GATES = ("beta", "decay", "strength")


def make(T: int, B: int = 1, H: int = 2, D: int = 16, Dv: int = 16, given: str = "all") -> dict[str, torch.Tensor]:
    """q, k, v, u and gates by name. Every fifth strength is 0; now and then a decay closes."""
    inputs = dict(zip("qkvu", vla_inputs(T, B, H, D, Dv), strict=True))
    decay = logsigmoid(3 * randn(B, T, H, seed=51))
    decay[:, 11::29] = -30
    strength = softplus(randn(B, T, H, seed=52))
    strength[:, ::5] = 0
    gates = {"beta": 2 * randn(B, T, H, seed=50).sigmoid(), "decay": decay, "strength": strength}
    return inputs | {name: x for name, x in gates.items() if given == "all" or name in given.split()}


def outcome(
    inputs: dict[str, torch.Tensor], state: varla.VLAState | None, dtype: torch.dtype, device: str, **options: Any
) -> dict[str, torch.Tensor]:
    def call(*tensors: torch.Tensor, **keywords: Any) -> Any:
        return varla.vla(**dict(zip(inputs, tensors, strict=True)), **keywords)

    return with_gradients(call, [x.to(device, dtype) for x in inputs.values()], state, **options)


def assert_agrees(
    inputs: dict[str, torch.Tensor],
    state: varla.VLAState | None = None,
    tolerance: float = 1e-5,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> None:
    """Outputs, final state and all gradients of the kernels within `tolerance` (by norm) of the loop in float64."""
    inputs = {name: x.to(dtype) for name, x in inputs.items()}
    single = None if state is None else of_type(state, torch.float32)
    double = None if single is None else of_type(single, torch.float64)
    wanted = outcome(inputs, double, torch.float64, "cpu", backend="reference", **options)
    there = None if single is None else single.to(DEVICE)
    got = outcome(inputs, there, dtype, DEVICE, backend="triton", **options)
    assert {got[name].dtype for name in ("o", *(f"d {i}" for i in range(len(inputs))))} == {dtype}
    assert [got[name].dtype for name in ("S", "A", "z")] == [torch.float32, torch.float32, torch.float64]
    errors = {name: relative(got[name], wanted[name]) for name in wanted if wanted[name].abs().max() > 0}
    assert not {name: error for name, error in errors.items() if not error <= tolerance}


@pytest.mark.parametrize("options", [GATED, {}], ids=["gated vla", "the paper's settings"])
@pytest.mark.parametrize("T", [1, 16, 17, 64, 65, 150])
def test_every_length(T: int, options: dict[str, Any]) -> None:
    assert_agrees(make(T), vla_state(1, 2, 16, 16), **options)


@pytest.mark.parametrize("given", [*GATES, "beta decay", "decay strength"])
def test_every_gate(given: str) -> None:
    for options in (GATED, NO_REFRESH, {"update_penalty": False}):
        assert_agrees(make(70, H=1, given=given), vla_state(1, 1, 16, 16), **options)


@pytest.mark.parametrize(("D", "Dv"), [(5, 4), (24, 40), (64, 80), (16, 130)])
def test_every_width(D: int, Dv: int) -> None:
    assert_agrees(make(70, H=1, D=D, Dv=Dv), vla_state(1, 1, D, Dv), **GATED)


@pytest.mark.parametrize(
    "options",
    [
        {"gain": "projection"}, {"gain": "raw", "lambda0": 2.0, **NO_REFRESH}, {"refresh_every": 7, "refresh": 0.1},
        {"feature_map": "identity", "normalizer": False}, {"normalize_query": True, "scale": 0.5}, {"eps": 30.0},
    ],
    ids=str,
)  # fmt: skip
def test_every_setting(options: dict[str, Any]) -> None:
    assert_agrees(make(50, B=2, H=1), vla_state(2, 1, 16, 16), 2e-5, **options)


@pytest.mark.parametrize("options", [GATED, {**GATED, "refresh_every": 20}], ids=["no refresh", "refresh"])
def test_several_spans(options: dict[str, Any]) -> None:
    assert_agrees(make(530, H=1), vla_state(1, 1, 16, 16), 2e-5, **options)


def test_a_long_sequence_alone_with_refresh() -> None:
    assert_agrees(make(1100, H=1), vla_state(1, 1, 16, 16), 2e-5, **{**GATED, "refresh_every": 20, "refresh": 0.05})


def test_packed() -> None:
    lengths = [3, 0, 70, 1, 130, 64]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    assert_agrees(make(sum(lengths), H=1), vla_state(6, 1, 16, 16), cu_seqlens=cu_seqlens, **GATED)


@pytest.mark.parametrize(
    "values", [(0.0, 0.0, 0.0), (2.0, -5.0, 3.0), (1.0, -1000.0, 0.05), (2.0, -1e-6, 0.0)], ids=str
)
def test_gates_at_their_ends(values: tuple[float, float, float]) -> None:
    inputs = make(70, H=1)
    for name, value in zip(GATES, values, strict=True):
        inputs[name] = torch.full_like(inputs[name], value)
    assert_agrees(inputs, vla_state(1, 1, 16, 16), 2e-5, **GATED)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("D", "Dv"), [(32, 32), (8, 8), (24, 40)])
def test_low_precision(D: int, Dv: int, dtype: torch.dtype) -> None:
    assert_agrees(make(100, D=D, Dv=Dv), vla_state(1, 2, D, Dv), 1e-2, dtype, **GATED)


def test_the_same_numbers_twice() -> None:
    first, second = (outcome(make(100), None, torch.float32, DEVICE, backend="triton", **GATED) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_every_element_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_written(make(67, D=5, Dv=33), monkeypatch, **GATED)


def assert_written(inputs: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
    """The same bits where memory that is asked for holds NaN."""
    call = {"backend": "triton", **options}
    clean = outcome(inputs, None, torch.float32, DEVICE, **call)
    empty, like = torch.Tensor.new_empty, torch.full_like

    def poisoned(x: torch.Tensor, *shape: Any, **options: Any) -> torch.Tensor:
        found = empty(x, *shape, **options)
        return found.fill_(float("nan")) if found.is_floating_point() else found

    monkeypatch.setattr(torch.Tensor, "new_empty", poisoned)
    monkeypatch.setattr(torch, "empty_like", lambda x, **options: like(x, float("nan"), **options))
    found = outcome(inputs, None, torch.float32, DEVICE, **call)
    monkeypatch.undo()
    assert {name for name, x in clean.items() if not torch.equal(x, found[name])} == set()


@pytest.mark.parametrize("given", ["all", *GATES])
def test_one_token_in_one_kernel(given: str) -> None:
    """Every token, one call each, in place."""
    for options in (GATED, {}, {"refresh_every": 2, "normalize_query": True, "scale": 0.3}):
        inputs = {name: x.float().to(DEVICE) for name, x in make(7, B=2, given=given).items()}
        state, outputs = state_on(DEVICE), []
        exact = {name: x.double().cpu() for name, x in inputs.items()}
        start = of_type(state, torch.float64).to("cpu")
        wanted = varla.vla(**exact, initial_state=start, return_state=True, backend="reference", **options)
        for i in range(7):
            token = {name: x[:, i] for name, x in inputs.items()}
            outputs.append(varla.vla_step(**token, state=state, inplace=True, backend="triton", **options)[0])
        assert_near((torch.stack(outputs, 1), state), wanted, 1e-5)


def forgetting(T: int, **sizes: int) -> dict[str, torch.Tensor]:
    """`make`, with forget. Now and then everything is forgotten."""
    inputs = make(T, **sizes)
    inputs["forget"] = logsigmoid(4 + randn(*inputs["beta"].shape, seed=53))
    inputs["forget"][:, 23::71] = -float("inf")
    return inputs


def assert_forgets(
    inputs: dict[str, torch.Tensor], beat: int, tolerance: float, dtype: torch.dtype, **options: Any
) -> None:
    inputs = {name: x.to(dtype) for name, x in inputs.items()}
    settings = {**GATED, "forget_at": "beat", "beat": beat, **options}
    wanted = outcome(inputs, None, torch.float64, "cpu", backend="reference", **settings)
    got = outcome(inputs, None, dtype, DEVICE, backend="triton", **settings)
    errors = {name: relative(got[name], wanted[name]) for name in wanted if wanted[name].abs().max() > 0}
    finite = {name: error for name, error in errors.items() if name != "f"}  # f has no norm where all is forgotten
    assert not {name: error for name, error in finite.items() if not error <= tolerance}
    assert torch.allclose(got["f"].double().cpu(), wanted["f"], rtol=tolerance)


@pytest.mark.parametrize(("T", "beat"), [(70, 32), (64, 64), (65, 64), (150, 64), (450, 192)])
def test_forgetting_at_the_beat(T: int, beat: int) -> None:
    """In pieces if the beat is no multiple of 64; of several spans if it does not divide 256."""
    assert_forgets(forgetting(T), beat, 1e-5, torch.float32)


@pytest.mark.parametrize(("D", "Dv"), [(5, 4), (24, 40)])
def test_forgetting_in_every_width(D: int, Dv: int) -> None:
    assert_forgets(forgetting(150, H=1, D=D, Dv=Dv), 64, 1e-5, torch.float32)


def test_forgetting_without_strengths() -> None:
    inputs = {name: x for name, x in forgetting(150, H=1).items() if name != "strength"}
    assert_forgets(inputs, 64, 1e-5, torch.float32)


def test_forgetting_of_sequences_that_go_on() -> None:
    """Rows at different distances from their next beat."""
    settings = {**GATED, "forget_at": "beat", "beat": 64}
    inputs = {name: x.float().double() for name, x in forgetting(190, B=2, H=1).items()}
    first, rest = ({name: x[:, part] for name, x in inputs.items()} for part in (slice(90), slice(90, None)))
    _, state = varla.vla(**first, return_state=True, backend="reference", **settings)
    state.t[1] += 38  # the first token is due
    single = of_type(state, torch.float32)
    wanted = outcome(rest, of_type(single, torch.float64), torch.float64, "cpu", backend="reference", **settings)
    got = outcome(rest, single.to(DEVICE), torch.float32, DEVICE, backend="triton", **settings)
    errors = {name: relative(got[name], wanted[name]) for name in wanted if wanted[name].isfinite().all()}
    assert not {name: error for name, error in errors.items() if not error <= 1e-5 and wanted[name].abs().max() > 0}
    assert torch.allclose(got["f"].double().cpu(), wanted["f"])


def test_forgetting_in_packed_sequences() -> None:
    lengths = [3, 0, 70, 1, 130, 64]
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0)
    assert_forgets(forgetting(sum(lengths), H=1), 64, 1e-5, torch.float32, cu_seqlens=cu_seqlens)


def test_forgetting_writes_every_element(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**GATED, "forget_at": "beat", "beat": 64}
    assert_written(forgetting(150, D=5, Dv=33), monkeypatch, **settings)


@pytest.mark.parametrize("begin", [0, 5])
@pytest.mark.parametrize("D", [16, 24])
def test_forgetting_before_one_token(D: int, begin: int) -> None:
    """Rows at different distances from their beat, also of sequences that begin."""
    settings = {**GATED, "forget_at": "beat", "beat": 4, "backend": "reference"}
    inputs = forgetting(begin + 11, B=2, D=D, Dv=D)
    inputs["forget"][:, 3] = -float("inf")
    whole = {name: x.float().double() for name, x in inputs.items()}
    _, state = varla.vla(**{name: x[:, :begin] for name, x in whole.items()}, return_state=True, **settings)
    state.t[1] += 2
    rest = {name: x[:, begin:] for name, x in whole.items()}
    wanted, after = varla.vla(**rest, initial_state=state, return_state=True, **settings)
    now, outputs = of_type(state, torch.float32).to(DEVICE), []
    for i in range(11):
        token = {name: x[:, i].float().to(DEVICE) for name, x in rest.items()}
        outputs.append(varla.vla_step(**token, state=now, inplace=True, **{**settings, "backend": "triton"})[0])
    assert relative(torch.stack(outputs, 1), wanted) <= 1e-5
    assert max(relative(getattr(now, name), getattr(after, name)) for name in ("S", "A", "z")) <= 1e-5
    assert torch.allclose(now.f.double().cpu(), after.f)
    assert now.t.tolist() == after.t.tolist()


@pytest.mark.parametrize("T", [20, 70])
def test_the_gated_delta_rule(T: int) -> None:
    """Token by token, and in chunks."""
    inputs = {name: x for name, x in make(T).items() if name not in ("u", "strength")}
    exact, single = (
        {name: x.float().to(kind) for name, x in inputs.items()} for kind in (torch.float64, torch.float32)
    )

    def call(*tensors: torch.Tensor, **keywords: Any) -> Any:
        return varla.delta_rule(**dict(zip(inputs, tensors, strict=True)), feature_map="silu", **keywords)

    wanted = with_gradients(call, list(exact.values()), None, backend="reference")
    got = with_gradients(call, [x.to(DEVICE) for x in single.values()], None, backend="triton")
    assert not {name for name in wanted if not relative(got[name], wanted[name]) <= 1e-5}


class TestOnAGPU:
    """What an interpreter is too slow for."""

    pytestmark = gpu

    @pytest.mark.parametrize("T", [4096, 65536])
    def test_long(self, T: int) -> None:
        inputs = {name: x.float().cuda() for name, x in make(T, H=1, D=64, Dv=64).items()}
        got = outcome(inputs, None, torch.float32, "cuda", backend="triton", **GATED)
        wanted = outcome(inputs, None, torch.float64, "cuda", backend="chunk", **GATED)
        errors = {name: relative(got[name], wanted[name]) for name in wanted if wanted[name].abs().max() > 0}
        assert not {name: error for name, error in errors.items() if not error <= 1e-4}

    @pytest.mark.parametrize("D", [64, 128])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_forgetting_as_models_use_it(self, dtype: torch.dtype, D: int) -> None:
        inputs = forgetting(700, B=2, H=2, D=D, Dv=D)
        inputs["strength"] = 0.05 * inputs["strength"]
        assert_forgets(inputs, 256, 1e-2 if dtype == torch.bfloat16 else 2e-5, dtype)

    @pytest.mark.parametrize("D", [64, 128])
    def test_bfloat16_as_models_use_it(self, D: int) -> None:
        """Several heads and rows, strengths as they begin: weak."""
        inputs = make(500, B=2, H=3, D=D, Dv=D)
        inputs["strength"] = 0.05 * inputs["strength"]
        assert_agrees(inputs, None, 1e-2, torch.bfloat16, **GATED)
