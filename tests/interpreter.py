"""Triton's interpreter, about five times as fast, with the same results to the last bit.

The tests' kernels are small, so nearly all of their time was the interpreter's own bookkeeping. It replaced the
functions of `triton.language` at every call of a device function, checked every integer operation for overflow without
reading the answer (`debug` is off), and built the types and shapes of every intermediate value anew.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import triton
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

VERSION = "3.9."  # the version whose insides are replaced; all others stay as they are


patch = pytest.MonkeyPatch()


def quicken() -> None:
    """Replace the slow parts; `patch.undo()` brings them back."""
    if not triton.__version__.startswith(VERSION):
        return
    options = dataclasses.replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    patch.setattr(interpreter.interpreter_builder, "options", options)
    patch.setattr(interpreter, "_get_np_dtype", _numpy_type(interpreter._get_np_dtype))
    patch.setattr(interpreter, "_patch_lang", _once_a_launch(interpreter._patch_lang))
    patch.setattr(interpreter, "_patch_attr", _patch_attr)
    patch.setattr(core.block_type, "__init__", _block_type(core.block_type.__init__))
    patch.setattr(core.block_type, "to_ir", _to_ir(core.block_type.to_ir))
    patch.setattr(core.tensor, "__init__", _tensor)
    patch.setattr(core.dtype, "__eq__", _equal(core.dtype.__eq__))
    patch.setattr(core, "_unwrap_if_constexpr", _unwrap(core._unwrap_if_constexpr))
    patch.setattr(TritonSemantic, "broadcast_impl_value", _broadcast)
    patch.setattr(TritonSemantic, "expand_dims", _expand_dims(TritonSemantic.expand_dims))
    check = _check(TritonSemantic.binary_op_type_checking_impl)
    patch.setattr(TritonSemantic, "binary_op_type_checking_impl", check)
    for name, operation in ARITHMETIC.items():
        patch.setattr(TritonSemantic, name, _binary(getattr(TritonSemantic, name), operation, None))
    patch.setattr(TritonSemantic, "add", _add(TritonSemantic.add))
    patch.setattr(TritonSemantic, "where", _where(TritonSemantic.where))
    for name, operation in COMPARISONS.items():
        patch.setattr(TritonSemantic, name, _binary(getattr(TritonSemantic, name), operation, core.int1))


def _numpy_type(slow: Callable[..., Any]) -> Callable[..., Any]:
    """The original builds its table at every call."""
    known: dict[str, Any] = {}

    def fast(kind: Any) -> Any:
        scalar = kind.scalar
        if scalar.is_ptr():
            return np.dtype(np.uint64)
        if scalar.name not in known:
            known[scalar.name] = slow(scalar)
        return known[scalar.name]

    return fast


class _Nothing:
    def restore(self) -> None:
        """The launch around it restores."""


class _Scope:
    def __init__(self, inner: Any, patched: list[Any]) -> None:
        self.inner, self.patched = inner, patched

    def restore(self) -> None:
        self.patched.clear()
        self.inner.restore()


def _once_a_launch(slow: Callable[..., Any]) -> Callable[..., Any]:
    """The functions of `triton.language` are replaced once a launch, not again at every call of a device function.

    They are looked for at the first launch; the next ones have the same replacements.
    """
    patched: list[Any] = []
    known: dict[Any, list[Any]] = {}

    @cache
    def languages(fn: Any) -> list[Any]:
        return [x for x in fn.__globals__.values() if inspect.ismodule(x) and x in (tl, core)]

    def fast(fn: Any) -> Any:
        if all(x in patched for x in languages(fn)):
            return _Nothing()
        patched.extend(languages(fn))
        if (used := tuple(languages(fn))) not in known:
            scope = slow(fn)
            known[used] = [(obj, name, inspect.getattr_static(obj, name)) for obj, name, _ in scope._changes]
        else:
            scope = interpreter._LangPatchScope()
            for change in known[used]:
                scope.set_attr(*change)
        return _Scope(scope, patched)

    return fast


def _patch_attr(obj: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
    """Calls the function itself: its wrapper only asks whether `_semantic` is there."""
    function = inspect.unwrap(member)

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = interpreter.interpreter_semantic
        return function(*args, **kwargs)

    scope.set_attr(obj, name, call)


def _block_type(slow: Callable[..., None]) -> Callable[..., None]:
    """The type of a block is checked and named once for each element type and shape."""
    known: dict[Any, dict[str, Any]] = {}

    def fast(self: Any, element_ty: Any, shape: Any) -> None:
        key = (element_ty.name, tuple(x.value if isinstance(x, core.constexpr) else x for x in shape))
        if key not in known:
            slow(self, element_ty, shape)
            of_tensor = (core.tuple([core.constexpr(x) for x in self.shape]), core.constexpr(self.numel))
            known[key] = {**vars(self), "of_tensor": of_tensor}
        vars(self).update(known[key])
        self.element_ty = element_ty

    return fast


SCALAR = (core.tuple([]), core.constexpr(1))


def _tensor(self: Any, handle: Any, type: Any) -> None:
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.shape, self.numel = type.of_tensor if type.is_block() else SCALAR


def _to_ir(slow: Callable[..., Any]) -> Callable[..., Any]:
    """To the interpreter, the type of a block is itself."""

    def fast(self: Any, builder: Any) -> Any:
        return self if builder is interpreter.interpreter_builder else slow(self, builder)

    return fast


def _equal(slow: Callable[..., bool]) -> Callable[..., bool]:
    """Most types that are compared are one object."""

    def fast(self: Any, other: Any) -> bool:
        return self is other or slow(self, other)

    return fast


def _unwrap(slow: Callable[..., Any]) -> Callable[..., Any]:
    """Few values are lists or tuples with constants in them."""
    plain = (core.tensor, core.dtype, int, float, bool, str, type(None))

    def fast(x: Any) -> Any:
        kind = type(x)
        if kind is core.constexpr:
            return x.value
        return x if kind in plain else slow(x)

    return fast


shape_of_both = cache(np.broadcast_shapes)


def _spread(x: Any, shape: tuple[int, ...]) -> Any:
    """A scalar or a block as a block of this shape."""
    handle = x.handle
    if not x.type.is_block():
        data = np.full(shape, handle.data, dtype=interpreter._get_np_dtype(handle.dtype))
    elif handle.data.shape == shape:
        return x
    else:
        data = np.broadcast_to(handle.data, shape)
    return core.tensor(_handle(data, handle.dtype.scalar), _block(x.dtype, shape))


def _broadcast(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    left, right = (tuple(x.type.shape.values) if x.type.is_block() else () for x in (lhs, rhs))
    if left == right:
        return lhs, rhs
    shape = shape_of_both(left, right)
    return _spread(lhs, shape), _spread(rhs, shape)


def _expand_dims(slow: Callable[..., Any]) -> Callable[..., Any]:
    """Every `x[:, None]` of a block."""

    def fast(self: Any, input: Any, axis: int) -> Any:
        if not input.type.is_block() or not 0 <= axis <= input.handle.data.ndim:
            return slow(self, input, axis)
        data = input.handle.data
        data = data.reshape(*data.shape[:axis], 1, *data.shape[axis:])
        return core.tensor(_handle(data, input.dtype), _block(input.dtype, data.shape))

    return fast


def _check(slow: Callable[..., Any]) -> Callable[..., Any]:
    """Two tensors of float32 or of one integer type are cast to no other type."""

    def fast(self: Any, lhs: Any, rhs: Any, *options: Any, **more: Any) -> Any:
        if isinstance(lhs, core.tensor) and isinstance(rhs, core.tensor):
            scalar = lhs.dtype
            if scalar == rhs.dtype and (scalar.is_int() or scalar.is_fp32()):
                return _broadcast(self, lhs, rhs)
        return slow(self, lhs, rhs, *options, **more)

    return fast


ARITHMETIC = {"add": np.add, "sub": np.subtract, "mul": np.multiply}
COMPARISONS = {
    "less_than": np.less,
    "less_equal": np.less_equal,
    "greater_than": np.greater,
    "greater_equal": np.greater_equal,
    "equal": np.equal,
    "not_equal": np.not_equal,
}
NUMBERS = {"fp32": np.float32, "int32": np.int32, "int64": np.int64}


def _binary(slow: Callable[..., Any], operation: Any, result: Any) -> Callable[..., Any]:
    """Tensors and numbers of one type, in one operation of numpy, which broadcasts by the same rules.

    `result`: the type of the elements; None for that of the operands.
    """

    def fast(self: Any, lhs: Any, rhs: Any, *options: Any, **more: Any) -> Any:
        kind = _kind(lhs, rhs)
        if kind is None:
            return slow(self, lhs, rhs, *options, **more)
        return _made(operation(_value(lhs, kind), _value(rhs, kind)), result or kind, lhs, rhs)

    return fast


def _add(slow: Callable[..., Any]) -> Callable[..., Any]:
    """A pointer and offsets."""

    def fast(self: Any, lhs: Any, rhs: Any, *options: Any, **more: Any) -> Any:
        both = type(lhs) is type(rhs) is core.tensor
        if not (both and lhs.dtype.is_ptr() and rhs.dtype.name in ("int32", "int64")):
            return slow(self, lhs, rhs, *options, **more)
        handle = interpreter.interpreter_builder.create_addptr(lhs.handle, rhs.handle)
        return _made(handle.data, lhs.dtype, lhs, rhs)

    return fast


def _where(slow: Callable[..., Any]) -> Callable[..., Any]:
    def fast(self: Any, condition: Any, x: Any, y: Any) -> Any:
        kind = _kind(x, y)
        if kind is None or condition.dtype != core.int1 or not condition.type.is_block():
            return slow(self, condition, x, y)
        data = np.where(condition.handle.data, _value(x, kind), _value(y, kind))
        return _made(data, kind, condition, x, y)

    return fast


def _kind(lhs: Any, rhs: Any) -> Any:
    """The type in which two operands are combined, at least one of them a tensor; None if it is not for here."""
    if type(lhs) is not core.tensor:
        return None if type(rhs) is not core.tensor else _kind(rhs, lhs)
    kind = lhs.dtype
    if kind.name not in NUMBERS:
        return None
    if type(rhs) is core.tensor:
        if kind == rhs.dtype:
            return kind
        return core.int64 if {kind.name, rhs.dtype.name} == {"int32", "int64"} else None
    if kind.name == "fp32":
        return kind if type(rhs) in (int, float) else None
    return kind if type(rhs) is int and -(2**31) <= rhs < 2**31 else None


def _value(x: Any, kind: Any) -> Any:
    """Numpy's value of a tensor or a number."""
    return x.handle.data if type(x) is core.tensor else NUMBERS[kind.name](x)


def _made(data: Any, kind: Any, *operands: Any) -> Any:
    """The tensor of these numbers: a block, if one of the operands is."""
    handle = _handle(data, kind)
    for x in operands:
        if type(x) is core.tensor and x.type.is_block():
            return core.tensor(handle, _block(kind, data.shape))
    return core.tensor(handle, kind)


def _handle(data: Any, kind: Any) -> Any:
    """Without the question whether numpy's type fits: operands of the same type gave these numbers."""
    handle = object.__new__(interpreter.TensorHandle)
    handle.data, handle.dtype, handle.attr = data, kind, {}
    return handle


blocks: dict[Any, Any] = {}


def _block(kind: Any, shape: tuple[int, ...]) -> Any:
    """The type of a block; one object for all of its kind and shape. (Pointers say more than their name.)"""
    if type(kind) is not core.dtype:
        return core.block_type(kind, list(shape))
    key = kind.name, shape
    if key not in blocks:
        blocks[key] = core.block_type(kind, list(shape))
    return blocks[key]
