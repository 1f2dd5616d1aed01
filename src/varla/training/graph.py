"""A function as one CUDA graph. Small models spend most of a step on launching kernels; a graph launches once."""

import gc
from collections.abc import Callable

import torch
from torch import Tensor

WARM = 3  # calls before the capture, in which kernels are compiled and the optimizer allocates its moments


class Graphed:
    """Calls `body`, which takes nothing and returns tensors; from the fourth call on as a CUDA graph.

    Everything that `body` reads and writes must keep its address: parameters, moments, the learning rate as a tensor.
    It may draw from `generator`. The next call overwrites the returned tensors.
    """

    def __init__(self, body: Callable[[], tuple[Tensor, ...]], generator: torch.Generator):
        self.body, self.generator = body, generator
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.found: tuple[Tensor, ...] = ()

    def __call__(self) -> tuple[Tensor, ...]:
        """One call of the body."""
        if self.calls < WARM:
            self._warm()
        else:
            if self.graph is None:
                self.graph = self._captured()
            self.graph.replay()
        self.calls += 1
        return self.found

    def _captured(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        graph.register_generator_state(self.generator)
        gc.collect()  # freeing the graph of an earlier run during the capture would invalidate the capture
        collecting = gc.isenabled()
        gc.disable()
        try:
            with torch.cuda.graph(graph):
                self.found = self.body()
        finally:
            if collecting:
                gc.enable()
        return graph

    def _warm(self) -> None:
        """An ordinary call, on a side stream, as PyTorch requires before a capture."""
        stream = torch.cuda.Stream(self.generator.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.found = self.body()
        torch.cuda.current_stream().wait_stream(stream)
