"""The forms and whether they can run here; what kernels are asked to do, and what is left to PyTorch."""

import pytest
import torch
from torch.autograd import forward_ad

import varla
from varla.ops.backends import MIN_KERNEL_ELEMENTS, transformed, worth_a_kernel


@pytest.fixture(autouse=True)
def triton_not_found_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """`cannot_launch` remembers that Triton can run; here the answer changes from test to test."""
    monkeypatch.setitem(worth_a_kernel.__globals__, "_triton_found", [])


def test_the_listing_of_backends_describes_each():
    listing = varla.backends()
    assert {"reference", "chunk"} <= set(listing)
    assert "auto" not in listing
    for name, backend in listing.items():
        assert backend.name == name
        assert isinstance(backend.summary, str)
        assert backend.summary
        assert isinstance(backend.available, bool)
        assert (backend.reason is None) if backend.available else bool(backend.reason)
    assert all(listing[name].available for name in ("reference", "chunk"))


class OnGPU(torch.Tensor):
    is_cuda = True


@pytest.mark.parametrize(
    ("kind", "count", "dtype", "wanted"),
    [
        (OnGPU, MIN_KERNEL_ELEMENTS, torch.bfloat16, True),
        (OnGPU, MIN_KERNEL_ELEMENTS - 1, torch.float32, False),
        (OnGPU, MIN_KERNEL_ELEMENTS, torch.float64, False),
        (torch.Tensor, MIN_KERNEL_ELEMENTS, torch.float32, False),
    ],
)
def test_what_is_worth_a_kernel(kind, count, dtype, wanted):
    pytest.importorskip("triton")
    assert worth_a_kernel(torch.empty(count, dtype=dtype).as_subclass(kind)) == wanted


def test_derivatives_that_kernels_do_not_have_are_seen():
    seen = []

    def call(x):
        seen.append(transformed((torch.zeros(3), x)))
        return x.sum()

    x = torch.randn(3)
    torch.func.jvp(call, (x,), (x,))
    torch.func.grad(call)(x)
    torch.func.vmap(call)(x[None])
    with forward_ad.dual_level():
        call(forward_ad.make_dual(x, x))
    assert seen == [True] * 4
    call(x)
    call(x.clone().requires_grad_())
    assert seen[4:] == [False] * 2


def test_the_listing_of_backends_is_a_copy():
    varla.backends().clear()
    assert varla.backends()


@pytest.mark.parametrize(
    ("installed", "interpreted", "gpu", "capability", "reason"),
    [
        (False, False, True, (9, 0), "not installed"),
        (True, False, False, None, "no CUDA GPU"),
        (True, False, True, (7, 5), "compute capability 8.0"),
        (True, False, True, (8, 0), None),
        (True, True, False, None, None),
    ],
)
def test_triton_says_why_it_cannot_run(monkeypatch, installed, interpreted, gpu, capability, reason):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if installed else None)
    monkeypatch.setenv("TRITON_INTERPRET", str(int(interpreted)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    found = varla.backends()["triton"]
    assert found.available == (reason is None)
    assert (found.reason is None) if reason is None else (reason in found.reason)


def test_triton_on_the_cpu_is_refused(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    inputs = [torch.randn(1, 8, 1, 16) for _ in range(4)]
    with pytest.raises(RuntimeError, match="backend='triton' cannot run here: the inputs are on cpu"):
        varla.vla(*inputs, backend="triton")
    assert varla.vla(*inputs).shape == (1, 8, 1, 16)  # "auto" goes by where the inputs are
