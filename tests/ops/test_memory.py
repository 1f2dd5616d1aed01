"""Peak memory, counted from the allocator's events: the same to the byte on every run."""

import pytest
import torch

import varla
from benchmarks.measure import peak_bytes


def inputs(B, T, H, D):
    return [torch.randn(B, T, H, D, requires_grad=True) for _ in range(4)]


def forward_backward(tensors, **options):
    grad = torch.randn_like(tensors[2])
    return lambda: torch.autograd.grad(varla.vla(*tensors, backend="chunk", **options), tensors, grad)


@pytest.mark.parametrize(("B", "T", "D", "chunk_size"), [(1, 4096, 32, 32), (1, 4096, 32, 64), (64, 64, 32, 32)])
def test_forward_and_backward_need_six_times_the_inputs_and_the_chunk_states(B, T, D, chunk_size):
    H = 4
    x = inputs(B, T, H, D)
    states = B * H * (T // chunk_size) * (2 * D * D + D) * 4
    peak = peak_bytes(forward_backward(x, chunk_size=chunk_size))
    assert peak <= 6 * sum(tensor.nbytes for tensor in x) + states


def test_without_gradients_memory_beyond_the_output_does_not_grow_with_length():
    def beyond(T):
        x = [tensor.detach() for tensor in inputs(1, T, 2, 16)]
        return peak_bytes(lambda: varla.vla(*x, backend="chunk")) - x[2].nbytes

    assert beyond(32768) <= 1.01 * beyond(8192)
