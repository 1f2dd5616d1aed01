"""The states of the mechanisms: tensors of constant size, batch first, that can be moved, detached and saved."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar, dataclass_transform

import safetensors
import safetensors.torch
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from varla.files import digest
from varla.ops.checks import check_shapes, check_untracked, dtype_name, dtype_of

_FILE_VERSION = "2"
_WITHOUT_CHECKSUM = "1"  # files of earlier varla: their numbers cannot be checked

DIMENSIONS = {"S": "B H Dv D", "A": "B H D D", "z": "B H D", "f": "B H", "t": "B"}
# Tensors whose dtype does not follow the inputs. z is a sum without end: in float32 it would stop growing at 2**24.
PRECISIONS = {"z": torch.float64, "t": torch.int64}

Kind = TypeVar("Kind", bound="Container")
StateT = TypeVar("StateT", bound="State")


class Container(ABC):
    """Named tensors that are copied, detached and moved together."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name."""

    @abstractmethod
    def map(self: Kind, function: Callable[[Tensor], Tensor]) -> Kind:
        """A container of the same kind with the function applied to every tensor."""

    def to(self: Kind, device: torch.device | str) -> Kind:
        """The same on another device. There is no dtype argument: the operator determines the precision."""
        return self.map(lambda x: x.to(device))

    def detach(self: Kind) -> Kind:
        """The same tensors, detached from the autograd graph (for truncated back-propagation through time)."""
        return self.map(Tensor.detach)

    def clone(self: Kind) -> Kind:
        """A copy that shares no memory with this one."""
        return self.map(Tensor.clone)

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(x.nbytes for x in self.tensors().values())

    def __repr__(self) -> str:
        """Types and shapes, a line for each tensor."""
        lines = [f"  {name}: {dtype_of(x)} {list(x.shape)}" for name, x in self.tensors().items()]
        return "\n".join([f"{type(self).__name__} of {self.nbytes:,} bytes", *lines])


@dataclass_transform(eq_default=False)
class State(Container):
    """Base class of the states. `LAYOUT` maps the name of each tensor to its dimensions.

    A subclass declares its tensors as fields, and is made a dataclass. LAYOUT follows from DIMENSIONS unless the
    subclass defines its own.
    """

    LAYOUT: ClassVar[dict[str, str]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make it a dataclass with a layout, and a pytree node: torch's tree functions then find its tensors."""
        super().__init_subclass__(**kwargs)
        dataclass(eq=False, repr=False)(cls)
        if "LAYOUT" not in vars(cls):
            own = vars(cls).get("__annotations__", {})
            cls.LAYOUT = {name: DIMENSIONS[name] for name in own} or cls.LAYOUT
        pytree.register_pytree_node(
            cls,
            lambda state: (list(state.tensors().values()), None),
            lambda values, _: cls.of(values),
            serialized_type_name=f"varla.{cls.__name__}",
        )

    def __repr__(self) -> str:
        """Names, dtypes and shapes of the tensors, but not their thousands of values."""
        tensors = self.tensors()
        fields = ", ".join(f"{name} {dtype_of(x)} {list(x.shape)}" for name, x in tensors.items())
        devices = ", ".join(sorted({str(x.device) for x in tensors.values()}))
        return f"{type(self).__name__}({fields}; {devices}, {self.nbytes:,} bytes)"

    @classmethod
    def of(cls: type[StateT], values: Iterable[Tensor]) -> StateT:
        """A state from its tensors, in the order of `LAYOUT`."""
        return cls(*values)

    @classmethod
    def zeros(cls: type[StateT], sizes: Mapping[str, int], dtype: torch.dtype, device: torch.device) -> StateT:
        """A state of zeros. `sizes` gives the size of each letter in `LAYOUT`."""
        tensors = []
        for name, dims in cls.LAYOUT.items():
            shape = [sizes[letter] for letter in dims.split()]
            tensors.append(torch.zeros(shape, dtype=PRECISIONS.get(name, dtype), device=device))
        return cls(*tensors)

    def tensors(self) -> dict[str, Tensor]:
        """The state's tensors by name, in the order of its fields."""
        return {name: getattr(self, name) for name in self.LAYOUT}

    def map(self: StateT, function: Callable[[Tensor], Tensor]) -> StateT:
        """A state with the function applied to every tensor."""
        return self.of(function(x) for x in self.tensors().values())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state and its checksum to a safetensors file, atomically: a crash leaves no partial file."""
        for name, x in self.tensors().items():
            if x.is_meta:
                raise ValueError(f"{name} is on the meta device: there are no numbers to save")
        kind, checksum = type(self).__name__, digest(self.tensors())
        write_safetensors(path, self.tensors(), {"state": kind, "version": _FILE_VERSION, "checksum": checksum})

    @classmethod
    def load(cls: type[StateT], path: str | os.PathLike[str], device: torch.device | str = "cpu") -> StateT:
        """Read a state that `save` wrote. Raises a ValueError for any other file, and for a damaged one.

        Files of version 1 have no checksum. They are read if names, types and shapes fit.
        """
        if os.path.isdir(path):
            raise ValueError(f"{path} is a folder, not a state file")
        try:
            with safetensors.safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                names = set(file.keys())
                # Copies: the file's memory map would follow whatever is written to the file later.
                tensors = {name: file.get_tensor(name).clone() for name in names & set(cls.LAYOUT)}
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is not a readable safetensors file: {error}") from error
        if metadata.get("state") != cls.__name__ or names != set(cls.LAYOUT):
            raise ValueError(
                f"{path} does not hold a {cls.__name__}: expected the tensors {sorted(cls.LAYOUT)} of a "
                f"{cls.__name__!r}, found {sorted(names)} of a {metadata.get('state', 'file without a name')!r}"
            )
        version = metadata.get("version")
        if version not in (_FILE_VERSION, _WITHOUT_CHECKSUM):
            raise ValueError(f"{path} has state version {version!r}; this varla reads version {_FILE_VERSION!r}")
        if version == _WITHOUT_CHECKSUM and "z" in tensors and tensors["z"].dtype == torch.float32:
            tensors["z"] = tensors["z"].double()
        try:
            _check_state_tensors({name: (tensors[name], cls.LAYOUT[name]) for name in cls.LAYOUT})
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path} does not hold a usable {cls.__name__}: {error}") from error
        if metadata.get("checksum") != (None if version == _WITHOUT_CHECKSUM else digest(tensors)):
            raise ValueError(f"{path} is damaged: its tensors are not those that were saved")
        return cls.of(tensors[name] for name in cls.LAYOUT).to(device)


class VLAState(State):
    """State of `varla.vla`.

    S [B, H, Dv, D]: the memory matrix, values by keys. A [B, H, D, D]: the inverse penalty matrix, symmetric
    positive definite. z [B, H, D]: running sum of key features, float64, so that it never stops growing. t [B]: tokens
    seen, int64. S and A are float64 for float64 inputs, and float32 for all other inputs.
    """

    S: Tensor
    A: Tensor
    z: Tensor
    t: Tensor


class ForgettingState(State):
    """State of `varla.vla` with `forget`: S, A, z and t as in VLAState, and f.

    f [B, H]: logarithm of C, the share of the prior lambda0 I that A^-1 still holds since the last beat. It is at most
    0, and has the precision of A.
    """

    S: Tensor
    A: Tensor
    z: Tensor
    f: Tensor
    t: Tensor


class DeltaRuleState(State):
    """State of `varla.delta_rule`: S [B, H, Dv, D] and t [B], as in VLAState."""

    S: Tensor
    t: Tensor


class MemoryState(State):
    """State of `varla.memory`: S [B, H, Dv, D], z [B, H, D] and t [B], as in VLAState."""

    S: Tensor
    z: Tensor
    t: Tensor


class LinearAttentionState(MemoryState):
    """State of `varla.linear_attention`, with the tensors of MemoryState."""


class DirectionState(State):
    """State of `varla.directions`: A [B, H, D, D] and t [B], as in VLAState."""

    A: Tensor
    t: Tensor


class ForgettingDirectionState(State):
    """State of `varla.directions` with `forget`: A [B, H, D, D], f [B, H] and t [B], as in ForgettingState."""

    A: Tensor
    f: Tensor
    t: Tensor


class MesaState(State):
    """State of `varla.mesa`: S [B, H, Dv, D], the sum of values times keys, and A, f and t as in ForgettingState."""

    S: Tensor
    A: Tensor
    f: Tensor
    t: Tensor


def check_state(
    name: str,
    state: object,
    kind: type[State],
    sizes: Mapping[str, int],
    device: torch.device,
    dtype: torch.dtype,
) -> None:
    """Check a state from the user against the sizes, device and dtype of the inputs."""
    if not isinstance(state, kind):
        raise TypeError(f"{name} must be a {kind.__name__} or None, got {type(state).__name__}")
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    for field, x in state.tensors().items():
        letters = kind.LAYOUT[field].split()
        shape = [sizes[letter] for letter in letters]
        label = f"{name}.{field}"
        if not isinstance(x, Tensor):
            raise TypeError(f"{label} must be a tensor, got {type(x).__name__}")
        if x.layout != torch.strided or x.is_nested:
            raise TypeError(f"{label} must be a dense tensor, got {'nested' if x.is_nested else x.layout}")
        if list(x.shape) != shape:
            raise ValueError(f"{label} must have shape [{', '.join(letters)}] = {shape}, got {list(x.shape)}")
        if x.device != device:
            raise ValueError(f"{label} must be on the inputs' device {device}, got {x.device}")
        if x.dtype != PRECISIONS.get(field, wanted):
            expected = f"{dtype_name(wanted)} for {dtype_name(dtype)} inputs"
            if field in PRECISIONS:
                expected = dtype_name(PRECISIONS[field])
            raise TypeError(f"{label} must be {expected}, got {dtype_of(x)}")


def check_inplace(name: str, state: State) -> None:
    """Check that a valid state can be updated in place: its tensors are contiguous and not tracked by autograd."""
    named = {f"{name}.{field}": x for field, x in state.tensors().items()}
    check_untracked("an update in place keeps nothing for a backward", named)
    for label, x in named.items():
        if not x.is_contiguous():
            raise ValueError(f"{label} must be contiguous to be updated in place, got strides {list(x.stride())}")


def _check_state_tensors(tensors: dict[str, tuple[Tensor, str]]) -> None:
    """Raise unless shapes agree, t is int64, z float64, and the other tensors are all float32 or all float64."""
    check_shapes(tensors)
    first = next(iter(tensors))
    precision = tensors[first][0].dtype
    if precision not in (torch.float32, torch.float64):
        raise TypeError(f"{first} must be float32 or float64, got {dtype_of(tensors[first][0])}")
    for name, (x, _) in tensors.items():
        wanted = PRECISIONS.get(name, precision)
        if x.dtype != wanted:
            raise TypeError(f"{name} must be {dtype_name(wanted)}, got {dtype_of(x)}")


def write_safetensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors to a safetensors file, atomically: a crash leaves no partial file."""
    path = Path(os.path.realpath(path))  # a link stays a link, and its target is replaced
    contiguous = {name: x.detach().cpu().contiguous() for name, x in tensors.items()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(safetensors.torch.save(contiguous, metadata))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):  # a full disk names no file, and the temporary one is gone
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
