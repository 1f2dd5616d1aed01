"""No kernel reads or writes outside its tensors, at odd sizes and in every type of buffer."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import varla
from tests.ops.triton.cases import state_on
from tests.ops.triton.mechanisms import go_token_by_token

pytest.importorskip("triton")

import triton
import triton.language as tl

from reproduction.sequential import vla_sequential
from varla.ops.backends import triton_interpreted
from varla.ops.triton.convolution import convolve
from varla.ops.triton.launcher import Precision
from varla.ops.triton.op import launcher_for
from varla.ops.vla import VLASettings

pytestmark = pytest.mark.skipif(not triton_interpreted(), reason="on a GPU, compute-sanitizer does this")

if triton_interpreted():
    from tests.ops.triton.bounds import OutOfBounds, watched


@pytest.fixture(autouse=True)
def _launchers_anew() -> Iterator[None]:
    """Launchers are kept from call to call, with the precision they were made for."""
    yield
    launcher_for.cache_clear()


PREPARED = ("features_forward", "features_backward")  # queries and keys, before a mechanism's own kernels


@triton.jit
def copy(x, y, n, beyond, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, i < n + beyond, 0.0), i < n)


def inputs(B: int, T: int, H: int, D: int, Dv: int, dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.randn(B, T, H, d).to(dtype).requires_grad_() for d in (D, D, Dv, D)]


def gates(B: int, T: int, H: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """beta, decay, strength."""
    return [(sign * torch.rand(B, T, H)).to(dtype).requires_grad_() for sign in (1, -1, 1)]


def gated_vla(*x: torch.Tensor, **options: Any) -> Any:
    named = dict(zip(("beta", "decay", "strength"), x[4:], strict=True))
    return varla.vla(*x[:4], **named, **options)


def both(call: Any, x: list[torch.Tensor], **options: Any) -> set[str]:
    """The kernels of a call and its backward, through every output."""
    with watched() as names:
        o, state = call(*x, return_state=True, backend="triton", **options)
        sum(y.float().sum() for y in (o, *state.tensors().values()) if y.requires_grad).backward()
    return names


@pytest.mark.parametrize("beyond", [0, 1, 5])
def test_the_watch_sees_what_is_read_beyond_the_end(beyond: int) -> None:
    x, y = torch.randn(11), torch.zeros(11)
    with watched():
        if beyond:
            with pytest.raises(Exception, match=f"reads {beyond} of {11 + beyond} numbers that are not its own"):
                copy[(1,)](x, y, 11, beyond, BLOCK=16)
        else:
            copy[(1,)](x, y, 11, beyond, BLOCK=16)
            assert torch.equal(x, y)


def test_the_watch_sees_what_is_written_beyond_the_end() -> None:
    with watched(), pytest.raises(Exception, match="writes 3 of 14 numbers that are not its own") as raised:
        copy[(1,)](torch.randn(14), torch.zeros(11), 14, 0, BLOCK=16)
    assert isinstance(raised.value, OutOfBounds) or isinstance(raised.value.__cause__, OutOfBounds)


@pytest.mark.parametrize("period", [20, None])
@pytest.mark.parametrize(
    ("T", "H", "D", "Dv", "buffer"), [(100, 3, 8, 8, torch.bfloat16), (65, 2, 5, 40, torch.float32)]
)
def test_vla(
    T: int, H: int, D: int, Dv: int, buffer: torch.dtype, period: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buffers between kernels as on a GPU, but for how operands of products are rounded."""
    exact = Precision(buffer, "tf32x3", "tf32x3", "tf32x3")
    launcher_for.cache_clear()
    monkeypatch.setattr(Precision, "of", classmethod(lambda *_: exact))
    x = inputs(2, T, H, D, Dv, buffer)
    for names in (
        both(varla.vla, x, refresh_every=period),
        both(gated_vla, [*x, *gates(2, T, H, buffer)], refresh_every=period),
    ):
        assert {"forward_walk", "prepare", "scan", "read", "turn", "scan_backward", "unread", "finish"} <= names
        assert ("direction_walk" if period else "direction_backward") in names
    assert "decayed_sum" in names


@pytest.mark.parametrize("options", [{"refresh": 0.05}, {"refresh_every": None}], ids=["refresh", "no refresh"])
def test_many_spans(options: dict[str, Any]) -> None:
    names = both(varla.vla, inputs(1, 1030, 1, 8, 8, torch.float32), **options)
    assert ("compose" if "refresh" in options else "invert_spans") in names


def test_packed() -> None:
    cu_seqlens = torch.tensor([0, 3, 3, 73, 74, 140])
    names = both(varla.vla, inputs(1, 140, 2, 8, 12, torch.float32), cu_seqlens=cu_seqlens)
    assert {"forward_walk", "finish", "direction_walk"} <= names


@pytest.mark.parametrize("buffer", [torch.float32, torch.bfloat16])
def test_others_in_chunks(buffer: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = Precision(buffer, "tf32x3", "tf32x3", "tf32x3")
    launcher_for.cache_clear()
    monkeypatch.setattr(Precision, "of", classmethod(lambda *_: exact))
    go_token_by_token(monkeypatch, up_to=0)
    q, k, v, _ = inputs(2, 70, 2, 5, 40, buffer)
    gate = torch.rand(2, 70, 2).to(buffer).requires_grad_()
    assert {"turn", *PREPARED} <= both(varla.delta_rule, [q, k, v, gate])
    decay = gates(2, 70, 2, buffer)[1]
    names = both(lambda *x, **options: varla.delta_rule(*x[:4], decay=x[4], **options), [q, k, v, gate, decay])
    assert {"turn", "decayed_sum"} <= names
    assert {"finish", *PREPARED} <= both(varla.linear_attention, [q, k, v])


@pytest.mark.parametrize(("D", "Dv"), [(8, 8), (5, 40)])
def test_token_by_token(D: int, Dv: int) -> None:
    q, k, v, _ = inputs(1, 19, 2, D, Dv, torch.float32)
    gate = torch.rand(1, 19, 2, Dv, requires_grad=True)
    walked = {"recurrent_forward", "recurrent_backward"}
    assert both(varla.linear_attention, [q, k, v]) == {*walked, *PREPARED}
    assert both(varla.delta_rule, [q, k, v, gate[..., 0]]) == {*walked, *PREPARED}
    assert both(varla.decayed_delta_rule, [q, k, v, -gate]) == {*walked, *PREPARED}


def test_decode_and_the_sequential_kernel() -> None:
    x = [y.detach() for y in inputs(2, 19, 2, 8, 12, torch.float32)]
    with watched() as names, torch.no_grad():
        varla.vla_step(*(y[:, 0] for y in x), state_on("cpu", D=8, Dv=12), backend="triton")
        beta, decay, strength = (y[:, 0] for y in gates(2, 19, 2))
        varla.vla_step(
            *(y[:, 0] for y in x), state_on("cpu", D=8, Dv=12), beta=beta, decay=decay, strength=strength,
            backend="triton",
        )  # fmt: skip
        vla_sequential(*x, state_on("cpu", D=8, Dv=12), VLASettings())
    assert names == {"decode_token", "walk_tokens"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("W", "C"), [(1, 5), (4, 37)])
@pytest.mark.parametrize("cu_seqlens", [None, torch.tensor([0, 1, 1, 3, 66, 67])])
def test_convolution(cu_seqlens: torch.Tensor | None, W: int, C: int, dtype: torch.dtype) -> None:
    B, T, rows = (2, 67, 2) if cu_seqlens is None else (1, 67, 5)
    shapes = ((B, T, C), (C, W), (C,), (rows, W - 1, C))
    x, weight, bias, before = (torch.randn(*shape).requires_grad_() for shape in shapes)
    with watched() as names:
        convolve(x.to(dtype), weight, bias, before, cu_seqlens).float().sum().backward()
    always = {"convolve_forward", "convolve_slopes", "convolve_turned"}
    assert names == always | ({"convolve_before_backward"} if W > 1 else set())
