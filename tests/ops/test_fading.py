"""Forgetting at the beat: the forms agree, the loop is its definition, and calls can be cut anywhere."""

from typing import Any

import pytest
import torch

import varla
from tests.ops.cases import error, of_type, randn, with_gradients

B, H, D, DV = 2, 2, 5, 4
SETTINGS: dict[str, Any] = {"refresh_every": None, "forget_at": "beat", "feature_map": "silu"}
FUNCTIONS = pytest.mark.parametrize("function", [varla.vla, varla.directions])


def make(T: int, function: Any = varla.vla, rows: int = B, strong: bool = True) -> dict[str, torch.Tensor]:
    widths = {"q": D, "k": D, "v": DV, "u": D} if function is varla.vla else {"k": D, "u": D}
    inputs = {name: randn(rows, T, H, width, seed=i) for i, (name, width) in enumerate(widths.items())}
    inputs["forget"] = -0.6 * randn(rows, T, H, seed=8).sigmoid()
    if strong:
        inputs["strength"] = randn(rows, T, H, seed=9).sigmoid()
    if function is varla.vla:
        inputs["beta"] = 2 * randn(rows, T, H, seed=10).sigmoid()
        inputs["decay"] = -randn(rows, T, H, seed=11).sigmoid()
    return inputs


def outcome(function: Any, inputs: dict[str, torch.Tensor], state: Any = None, **options: Any) -> Any:
    """Outputs, final state and all gradients."""

    def call(*tensors: torch.Tensor, **keywords: Any) -> Any:
        return function(**dict(zip(inputs, tensors, strict=True)), **keywords)

    return with_gradients(call, list(inputs.values()), state, **SETTINGS, **options)


def assert_agrees(function: Any, inputs: dict[str, torch.Tensor], state: Any = None, **options: Any) -> None:
    wanted = outcome(function, inputs, state, backend="reference", **options)
    got = outcome(function, inputs, state, backend="chunk", **options)
    assert got.keys() == wanted.keys()
    assert not {name: apart for name in got if not (apart := error(got[name], wanted[name])) <= 1e-12}


def begun(function: Any, beat: int) -> Any:
    """A state whose rows are at different distances from their next beat."""
    _, state = function(**make(9, function), return_state=True, backend="reference", beat=beat, **SETTINGS)
    state.t[1] += 2
    return state


@FUNCTIONS
@pytest.mark.parametrize("beat", [1, 4, 7, 64])
@pytest.mark.parametrize("T", [1, 4, 16, 17, 50])
def test_the_forms_agree(T: int, beat: int, function: Any) -> None:
    assert_agrees(function, make(T, function), beat=beat)
    assert_agrees(function, make(T, function), begun(function, beat), beat=beat)


@FUNCTIONS
def test_u_of_its_own_length(function: Any) -> None:
    assert_agrees(function, make(30, function, strong=False), begun(function, 7), beat=7)


@FUNCTIONS
def test_packed(function: Any) -> None:
    cu_seqlens = torch.tensor([0, 3, 3, 20, 21, 60])
    assert_agrees(function, make(60, function, rows=1), beat=7, cu_seqlens=cu_seqlens)


@FUNCTIONS
@pytest.mark.parametrize("T", [0, 9])
def test_no_tokens(T: int, function: Any) -> None:
    state = begun(function, 7)
    inputs = make(T, function)
    o, after = function(**inputs, initial_state=state, return_state=True, backend="chunk", beat=7, **SETTINGS)
    assert o.shape[1] == T
    assert after.t.tolist() == (state.t + T).tolist()
    assert T or all(torch.equal(x, y) for x, y in zip(after.tensors().values(), state.tensors().values(), strict=True))


def test_everything_may_be_forgotten() -> None:
    """-inf once: from the next beat on, A is as at the beginning."""
    inputs = make(30)
    inputs["forget"][:, 5] = -float("inf")
    assert_agrees(varla.vla, inputs, beat=7)
    own = {name: inputs[name] for name in ("k", "u", "strength", "forget")}
    whole = varla.directions(**own, beat=7, **SETTINGS)
    later = varla.directions(**{name: x[:, 7:] for name, x in own.items()}, beat=7, **SETTINGS)
    assert error(whole[:, 7:], later) <= 1e-12


def test_the_definition_by_inverses() -> None:
    inputs, beat, lambda0 = make(25, varla.directions), 6, 0.3
    a, state = varla.directions(**inputs, return_state=True, beat=beat, lambda0=lambda0, gain="raw", **SETTINGS)
    eye = torch.eye(D, dtype=torch.float64)
    sums, log_C = torch.zeros(B, H, D, D, dtype=torch.float64), torch.zeros(B, H, dtype=torch.float64)
    k = torch.nn.functional.normalize(torch.nn.functional.silu(inputs["k"]), dim=-1)
    u = torch.nn.functional.normalize(inputs["u"], dim=-1)
    for t in range(25):
        if t > 0 and t % beat == 0:
            sums, log_C = log_C.exp()[..., None, None] * sums, torch.zeros_like(log_C)
        log_C = log_C + inputs["forget"][:, t]
        sums = sums + inputs["strength"][:, t, :, None, None] * u[:, t, :, :, None] * u[:, t, :, None, :]
        assert error(a[:, t], torch.linalg.solve(lambda0 * eye + sums, k[:, t])) <= 1e-12
    assert error(state.A, torch.linalg.inv(lambda0 * eye + sums)) <= 1e-12
    assert error(state.f, log_C) <= 1e-12


@pytest.mark.parametrize("cut", [1, 6, 7, 8, 20])
def test_in_pieces_and_token_by_token(cut: int) -> None:
    inputs = make(29)
    wanted = varla.vla(**inputs, beat=7, **SETTINGS)
    first = {name: x[:, :cut] for name, x in inputs.items()}
    o, state = varla.vla(**first, return_state=True, beat=7, **SETTINGS)
    outputs = [o]
    rest = {name: x[:, cut:] for name, x in inputs.items()}
    outputs.append(varla.vla(**rest, initial_state=state, beat=7, backend="chunk", **SETTINGS))
    assert error(torch.cat(outputs, 1), wanted) <= 1e-12
    for t in range(cut, 29):
        token = {name: x[:, t] for name, x in inputs.items()}
        o, state = varla.vla_step(**token, state=state, beat=7, **SETTINGS)
        assert error(o, wanted[:, t]) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision(dtype: torch.dtype) -> None:
    inputs = {name: x.to(dtype) for name, x in make(50).items()}
    exact = {name: x.double() for name, x in inputs.items()}
    wanted, after = varla.vla(**exact, return_state=True, beat=16, **SETTINGS)
    o, state = varla.vla(**inputs, return_state=True, beat=16, backend="chunk", **SETTINGS)
    assert o.dtype == dtype
    assert error(o.double(), wanted) <= (1e-5 if dtype == torch.float32 else 1e-2)
    for name, x in of_type(state, torch.float64).tensors().items():
        assert error(x, after.tensors()[name]) <= 1e-5


def test_under_compile() -> None:
    inputs = {name: x.float() for name, x in make(40).items()}

    def call(**tensors: torch.Tensor) -> torch.Tensor:
        return varla.vla(**tensors, beat=16, backend="chunk", **SETTINGS)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert error(compiled(**inputs), call(**inputs)) <= 1e-6


def test_another_place_is_refused() -> None:
    with pytest.raises(ValueError, match="forget_at must be one of 'token', 'beat'"):
        varla.vla(**make(5), refresh_every=None, forget_at="chunk")
