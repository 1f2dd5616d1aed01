"""A watch over kernels in Triton's interpreter: every address that they read or write must be in one of their tensors.

The interpreter itself reads and writes wherever it is told to, and what lies beside a tensor is mostly some other one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter


class OutOfBounds(AssertionError):
    """A kernel used memory that it was not given."""


def extent(x: torch.Tensor) -> tuple[int, int]:
    """Addresses from the first byte of a tensor to behind its last."""
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    return x.data_ptr(), x.data_ptr() + (last + 1 if x.numel() else 0) * x.element_size()


@contextmanager
def watched() -> Iterator[set[str]]:
    """Within it, kernels raise OutOfBounds; gives the names of those that ran."""
    names: set[str] = set()
    given: list[tuple[int, int]] = []
    builder, executor = type(interpreter.interpreter_builder), interpreter.GridExecutor
    load, store, hosted = builder.create_masked_load, builder.create_masked_store, executor._init_args_hst

    def check(pointers: Any, mask: Any, verb: str) -> None:
        addresses = np.atleast_1d(pointers.data)[np.broadcast_to(mask.data, np.atleast_1d(pointers.data).shape)]
        size = np.dtype(interpreter._get_np_dtype(pointers.get_element_ty())).itemsize
        inside = np.zeros(addresses.shape, bool)
        for begin, end in given:
            inside |= (addresses >= begin) & (addresses + size <= end)
        if not inside.all():
            where = interpreter.interpreter_builder.grid_idx
            raise OutOfBounds(f"program {where} {verb} {(~inside).sum()} of {inside.size} numbers that are not its own")

    def checked_load(self: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask, "reads")
        return load(self, pointers, mask, *rest)

    def checked_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check(pointers, mask, "writes")
        return store(self, pointers, value, mask, *rest)

    def noted(self: Any, arguments: Any, named: Any) -> Any:
        names.add(self.fn.__name__)
        hosts, by_name = hosted(self, arguments, named)
        tensors = [x for x in (*hosts, *by_name.values()) if isinstance(x, torch.Tensor)]
        given[:] = [extent(x) for x in tensors]
        return hosts, by_name

    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    executor._init_args_hst = noted
    try:
        yield names
    finally:
        builder.create_masked_load, builder.create_masked_store = load, store
        executor._init_args_hst = hosted
