"""A training step as one CUDA graph: small models spend most of a step launching kernels, and a graph launches once."""

import gc
from collections.abc import Callable

import torch
from torch import Tensor

WARM = 3  # steps before the capture: kernels get compiled, and the optimiser makes its moments


class Graphed:
    """Calls `body`, which takes nothing and returns tensors; from the fourth call on, as a graph.

    All that `body` reads and writes must stay where it is: parameters, moments, the learning rate as a tensor. It may
    draw from `generator`. What it returned is overwritten by the next call.
    """

    def __init__(self, body: Callable[[], tuple[Tensor, ...]], generator: torch.Generator):
        """Nothing runs yet."""
        self.body, self.generator = body, generator
        self.calls = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.found: tuple[Tensor, ...] = ()

    def __call__(self) -> tuple[Tensor, ...]:
        """One step."""
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
        gc.collect()  # a graph of an earlier run, freed during the capture, would spoil it
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
        """A step like any other, on a stream of its own, as capturing wants it."""
        stream = torch.cuda.Stream(self.generator.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.found = self.body()
        torch.cuda.current_stream().wait_stream(stream)
