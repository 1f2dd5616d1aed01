"""Whether two forms of an operator have the same numbers, and what rounding may do to them."""

from typing import Any

import torch
from torch import Tensor

import varla
from tests.fuzz.core import Find
from varla.ops.dispatch import default_chunk_size
from varla.ops.state import State

WRONG = 1e-2  # float32 may lose digits, but not its meaning
NEAR = 1e-6  # of the type's largest number: sums and products of the same token may overflow before the output


def compare(name: str, given: dict[str, Any]) -> None:
    """Raise a Find if the forms of an operator do not agree on these arguments."""
    function = getattr(varla, name)
    loop = {key: value for key, value in given.items() if key != "chunk_size"} | {"backend": "reference"}
    wanted = _numbers(function(**{key: _double(value) for key, value in loop.items()}))
    plain = _numbers(function(**loop))
    found = _numbers(function(**given | {"backend": "chunk"}))
    heads = Heads(wanted, given)
    for key, value in wanted.items():
        theirs, ours = heads.off(key, plain[key], value, 1), heads.off(key, found[key], value, heads.chunk)
        if not theirs <= WRONG:
            raise Find(f"the reference of {name} is off by {theirs:.1e} in {key}")
        if ours > _allowed(name, given) and given["k"].dtype == torch.float64:
            theirs = max(heads.off(key, _numbers(function(**_moved(loop, i)))[key], value, 1) for i in range(3))
        if not ours <= max(100 * theirs, _allowed(name, given)):
            raise Find(f"{name} is off by {ours:.1e} in {key}, its reference by {theirs:.1e}")


class Heads:
    """How large the outputs of each sequence and head get up to each token: some diverge.

    A head may be infinite or NaN from the first token at which a number comes near the end of the type's range. In
    chunks of n tokens that reaches up to n - 1 tokens before it.
    """

    def __init__(self, wanted: dict[str, Tensor], given: dict[str, Any]):
        """Read the outputs and S of the float64 reference."""
        self.largest = torch.finfo(given["k"].dtype).max
        # v - S k may be all rounding: then its error is one of v.
        self.least = max(1e-3, 1e-2 * float(given["v"].abs().max())) if "v" in given else 1e-3
        self.chunk = given.get("chunk_size") or default_chunk_size(given["k"].shape[-1])
        held = given.get("initial_state")
        self.start = None if held is None or "S" not in held.LAYOUT else held.S.abs().max().double()
        packed = given.get("cu_seqlens")
        lengths = [wanted["o"].shape[1]] if packed is None else packed.diff().tolist()
        size = wanted["o"].abs().nan_to_num(torch.inf).amax(-1, keepdim=True)
        # [B, T, H, 1] of each sequence. One without tokens has no outputs.
        self.reach = [x.cummax(1)[0] for x in size.split(lengths, 1)]
        self.end = torch.cat([x.amax(1) if x.shape[1] else x.new_zeros(1, *x.shape[2:]) for x in self.reach])[..., None]
        if "S" in wanted:  # [N, H, 1, 1]
            self.end = self.end.maximum(wanted["S"].abs().nan_to_num(torch.inf).amax((-2, -1), keepdim=True))

    def off(self, key: str, x: Tensor, wanted: Tensor, chunk: int) -> float:
        """The largest difference; infinite or NaN if x is finite where it must not be, or the other way round."""
        if not x.numel():
            return 0.0
        nothing = torch.zeros_like(wanted)  # the other numbers of a state do not depend on S
        so_far, soon, ever = (x.expand_as(wanted) for x in self._reach(key, chunk) or (nothing,) * 3)
        near = NEAR * self.largest
        # Relative to the largest number, or to `least` where the inputs cancel each other. A head that diverges has
        # numbers of all sizes: there, relative to the largest so far.
        largest = wanted.masked_fill(ever > near, 0).abs().max()
        if key in ("S", "o") and self.start is not None:  # S may shrink, but not its errors inside a chunk
            largest = largest.maximum(self.start)
        off = (x - wanted).abs() / torch.where(ever > near, so_far, largest).clamp_min(self.least)
        off = torch.where((soon > near) & ~x.isfinite(), 0.0, off)
        beyond = ~(wanted.abs() / 1.01 <= self.largest)
        return float(torch.where(beyond, torch.where(x.isfinite(), torch.inf, 0.0), off).max())

    def _reach(self, key: str, chunk: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """The largest number of a head up to each token, up to the end of its chunk, and up to the last token."""
        if key == "S":
            return self.end, self.end, self.end
        if key != "o":
            return None
        last = [torch.arange(x.shape[1]).add(chunk - 1).clamp(max=x.shape[1] - 1) for x in self.reach]
        soon = [x[:, i] for x, i in zip(self.reach, last, strict=True)]
        ever = [x[:, -1:].expand_as(x) for x in self.reach]
        return torch.cat(self.reach, 1), torch.cat(soon, 1), torch.cat(ever, 1)


def compare_gradients(name: str, given: dict[str, Any], weights: torch.Generator) -> None:
    """Raise a Find if the gradients of the forms do not agree. All outputs and the final state have random weights."""
    seed = weights.initial_seed()
    loop = {key: value for key, value in given.items() if key != "chunk_size"}
    wanted = _gradients(name, loop | {"backend": "reference"}, torch.Generator().manual_seed(seed))
    found = _gradients(name, given | {"backend": "chunk"}, torch.Generator().manual_seed(seed))
    if not all(x.isfinite().all() for x in wanted.values()):  # S diverges: see `forms`
        return
    # A gradient may cancel: that of a key of one dimension is 0. Then it is compared with the others.
    least = max(0.1, *(1e-2 * float(x.abs().max()) for x in wanted.values() if x.numel()))
    for key, value in wanted.items():
        if key == "u" and value.shape[-1] == 1:  # of unit length, it has no gradient; the loop's is all rounding
            value = torch.zeros_like(value)
        off = float((found[key] - value).abs().max() / value.abs().max().clamp_min(least)) if value.numel() else 0.0
        if not off <= 1000 * _allowed(name, given):
            raise Find(f"the gradient of {name} is off by {off:.1e} in {key}")


def _gradients(name: str, given: dict[str, Any], weights: torch.Generator) -> dict[str, Tensor]:
    """Gradients of the inputs and of the initial state, by name."""
    leaves: dict[str, Tensor] = {}

    def leaf(key: str, x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        leaves[key] = x.detach().clone().requires_grad_()
        return leaves[key]

    tracked = {key: leaf(key, value) for key, value in given.items()}
    state = given.get("initial_state")
    if state is not None:
        tracked["initial_state"] = type(state)(**{key: leaf(f"initial {key}", x) for key, x in state.tensors().items()})
    o, after = getattr(varla, name)(**tracked)
    results = [o, *(x for x in after.tensors().values() if x.is_floating_point())]
    loss = sum((x * torch.randn(x.shape, generator=weights, dtype=x.dtype)).sum() for x in results)
    found = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def _allowed(name: str, given: dict[str, Any]) -> float:
    """Rounding, which grows with A before the first token and as the prior is forgotten (`varla.vla`)."""
    forgotten = given.get("decay" if name == "mesa" else "forget")
    share = 1.0
    if forgotten is not None and given.get("forget_at") != "beat":  # until a beat gives the prior back
        least = given.get("beat", 64) * forgotten.min()
        share = float(forgotten.sum(1).min().maximum(least).double().exp().clamp(min=1e-300))
    A = 1 / given.get("lambda0", 0.1)
    held = given.get("initial_state")
    if held is not None and "A" in held.LAYOUT:
        A = max(A, float(held.A.diagonal(dim1=-2, dim2=-1).sum(-1).max()))  # at least its largest eigenvalue
    eps = torch.finfo(given["k"].dtype).eps
    return eps * (1000 + 50 * _weight(name, given) * A / share)


def _weight(name: str, given: dict[str, Any]) -> float:
    """The largest squared length of u."""
    if name == "mesa":
        length = 1.0 if given.get("normalize_key", True) else float(given["k"].double().square().sum(-1).max())
        return float(given["beta"].max()) * length
    return float(given["strength"].max()) if "strength" in given else (given.get("penalty_scale") or 1.0) ** 2


def _moved(given: dict[str, Any], seed: int) -> dict[str, Any]:
    """The same call with q, k and v changed by up to a unit in the last place.

    A reference in float64 has no error to measure. What the last place of the inputs changes is what rounding may
    change: much, where keys are long and S diverges.
    """
    numbers = torch.Generator().manual_seed(seed)

    def moved(x: Tensor) -> Tensor:
        return x * (1 + torch.finfo(x.dtype).eps * torch.randint(-1, 2, x.shape, generator=numbers).to(x.dtype))

    return {key: moved(value) if key in ("q", "k", "v") else value for key, value in given.items()}


def _double(value: Any) -> Any:
    if isinstance(value, State):
        return value.map(_double)
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def _numbers(found: tuple[Tensor, State]) -> dict[str, Tensor]:
    o, state = found
    return {"o": o.double(), **{name: x.double() for name, x in state.tensors().items()}}
