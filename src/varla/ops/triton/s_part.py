"""The host side of the S part: what is read from and written to S along given directions a, forward and backward.

Forward: `prepare`, `scan`, `read`. Backward: `turn` and `scan_backward`, `unread`, `finish`: see memory.py.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from varla.ops.settings import VLASettings
from varla.ops.triton import information, memory
from varla.ops.triton.configuration import Inputs, Kept, Precision, Shape, State
from varla.ops.triton.plan import CHUNK, Plan, parts


class Gradients(NamedTuple):
    """Of q, k and v [tokens, H, *], without what reaches k through a; of a, or of A k; of the initial S and z."""

    dq: Tensor
    dk: Tensor
    dv: Tensor
    da: Tensor
    dS: Tensor
    dz: Tensor


@dataclass(frozen=True)
class SPart:
    """One call's constants: its plan, shapes, precision and scalars. `dry`: compiled kernels go there, none run.

    `error`: what is written is v less what S already answers; else v itself.
    """

    plan: Plan
    shape: Shape
    precision: Precision
    settings: VLASettings
    dry: list[Any] | None = None
    error: bool = True

    def write_and_read(self, x: Inputs, kept: Kept, S: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(o, S, z): outputs [tokens, H, DV] and the state after the last token. Reads kept.a; fills the rest."""
        s = self.shape
        tk = torch.empty_like(kept.a) if self.error else kept.a
        self._prepare(x, kept, tk)
        S, z = self._scan(tk, kept, S, z)
        del tk
        o = torch.empty_like(x.v)
        self._launch(
            memory.read, (len(self.plan.chunks) * s.H, parts(s.DV, s.wide)),
            x.q, x.k, x.v, kept.norm, kept.W, kept.S0, kept.z0, o, kept.denominator, self.plan.chunks,
            s.H, s.D, s.DV, self.settings.eps,
            **self._even_tiles(s.wide), **self._how("ELU", "UNIT", "NORMALIZE"), DOT=self.precision.dot,
            ERROR=self.error, num_warps=s.warps, maxnreg=s.registers,
        )  # fmt: skip
        return o, S, z

    def back(self, x: Inputs, kept: Kept, do: Tensor, dS: Tensor, dz: Tensor, by_chunk: bool) -> Gradients:
        """The same in reverse. `by_chunk`: da is [chunks, H, CHUNK, D] float32, not [tokens, H, D]."""
        s, plan = self.shape, self.plan
        per_chunk = len(plan.chunks) * s.H
        dv, dS_initial = torch.empty_like(x.v), torch.empty_like(dS)
        dSs = kept.a.new_empty(len(plan.chunks), s.H, s.DV, s.D)
        self._scan_backward(x, kept, do, dS, dSs, dv, dS_initial)
        dD, dzs, dq = torch.empty_like(kept.denominator), torch.empty_like(kept.z0), torch.empty_like(x.q)
        self._launch(
            memory.unread, (per_chunk,),
            x.q, x.k, kept.a, kept.E, kept.S0, kept.z0, do, kept.denominator, dD, dzs, dq,
            plan.chunks, s.H, s.D, s.DV, self.settings.eps,
            **self._tiles(s.BV), **self._how("ELU", "NORMALIZE"), DOT=self.precision.dot,
            num_warps=8, num_stages=s.stages, maxnreg=s.registers,
        )  # fmt: skip
        dz_initial = torch.empty_like(dz)
        if not self.settings.normalizer:
            dzs.zero_()
        self._running_sum(dzs, dz, dz_initial, plan.first, reverse=True)
        dk = torch.empty_like(kept.a)
        da = self._rows_by_chunk(dSs) if by_chunk else torch.empty_like(kept.a)
        self._launch(
            memory.finish, (per_chunk,),
            x.q, x.k, kept.a, kept.norm, kept.gain, kept.E, kept.S0, do, kept.denominator, dD, dv, dSs, dzs, dk, da,
            plan.chunks, s.H, s.D, s.DV, self.settings.eps,
            **self._tiles(min(s.BV, 32)), **self._how("ELU", "UNIT", "NORMALIZE", "GAIN"), DOT=self.precision.dot,
            ERROR=self.error, BY_CHUNK=by_chunk, num_warps=s.finishing, num_stages=s.stages,
        )  # fmt: skip
        return Gradients(dq, dk, dv, da, dS_initial, dz_initial)

    def rehearse(self, tokens: int, dtype: torch.dtype, device: torch.device, backward: bool) -> None:
        """A call on so many tokens, with `dry` but for the launches, and its backward. Nothing it computes is used."""
        x, state, kept = self._stand_ins(tokens, dtype, device)
        if not self.error:
            kept = kept._replace(E=x.v)
        o, S, z = self.write_and_read(x, kept, state.S, state.z)
        if backward:
            self.back(x, kept, o, S, z, by_chunk=False)

    def _stand_ins(self, tokens: int, dtype: torch.dtype, device: torch.device) -> tuple[Inputs, State, Kept]:
        """Tensors of the types and sizes that a call has."""
        x, plan = Inputs.empty(tokens, self.shape, dtype, device), self.plan
        kept = Kept.empty(x.q, self.shape.DV, len(plan.chunks), len(plan.spans), self.precision.buffer)
        return x, State.empty(len(plan.whole), self.shape, device), kept

    @property
    def _few(self) -> bool:
        """Whether a program to each head and tile of values leaves much of a large GPU idle."""
        s = self.shape
        return len(self.plan.whole) * s.H * parts(s.DV, s.narrow[1]) < 128

    @property
    def _narrow(self) -> int:
        return self.shape.narrow[0 if self._few else 1]

    def _prepare(self, x: Inputs, kept: Kept, tk: Tensor) -> None:
        """Fill tk, and of `kept` the norms, T^-1 and W; E and z0 with Tv and sums of key features."""
        s, plan = self.shape, self.plan
        self._launch(
            memory.prepare, (len(plan.chunks) * s.H,),
            x.q, x.k, x.v, kept.a, kept.norm, kept.tinv, kept.W, tk, kept.E, kept.z0, plan.chunks, s.H, s.D, s.DV,
            **self._even_tiles(s.BV), **self._how("ELU", "UNIT"), DOT=self.precision.dot, SOLVE=self.precision.times,
            ERROR=self.error, num_warps=4, maxnreg=168 if s.half else None,
        )  # fmt: skip

    def _scan(self, tk: Tensor, kept: Kept, initial_S: Tensor, initial_z: Tensor) -> tuple[Tensor, Tensor]:
        """S and z after the last chunk. Fills kept.S0 and completes kept.E and kept.z0."""
        s, plan = self.shape, self.plan
        S, z = torch.empty_like(initial_S), torch.empty_like(initial_z)
        self._launch(
            memory.scan, (len(plan.whole) * s.H, parts(s.DV, self._narrow)),
            tk, kept.E, kept.a, initial_S, initial_z, kept.z0, kept.S0, S, z, plan.chunks, plan.first, s.H, s.D, s.DV,
            **self._tiles(self._narrow), DOT=self.precision.dot, ERROR=self.error, num_warps=4, num_stages=s.scanning,
        )  # fmt: skip
        return S, z

    def _scan_backward(
        self, x: Inputs, kept: Kept, do: Tensor, dS: Tensor, dSs: Tensor, dv: Tensor, initial: Tensor
    ) -> None:
        """Fills dSs, dS after every chunk, dv, and dS before the first."""
        s, plan, narrow = self.shape, self.plan, min(self._narrow, 32)
        ta, B, K = kept.a, x.q, kept.a
        if self.error:
            ta, B, K = (torch.empty_like(kept.a) for _ in range(3))
            self._launch(
                memory.turn, (len(plan.chunks) * s.H,),
                x.q, x.k, kept.a, kept.norm, kept.tinv, kept.W, ta, B, K, plan.chunks, s.H, s.D,
                BD=s.BD, **self._how("ELU", "UNIT"), DOT=self.precision.dot, num_warps=s.warps, maxnreg=s.registers,
            )  # fmt: skip
        self._launch(
            memory.scan_backward, (len(plan.whole) * s.H, parts(s.DV, narrow)),
            ta, B, K, kept.W, do, kept.denominator, dS, dSs, dv, initial,
            plan.chunks, plan.first, s.H, s.D, s.DV, self.settings.eps,
            **self._tiles(narrow), **self._how("NORMALIZE"), DOT=self.precision.dot, ERROR=self.error,
            num_warps=4, num_stages=s.scanning,
        )  # fmt: skip

    def _running_sum(self, x: Tensor, initial: Tensor, total: Tensor, first: Tensor, reverse: bool) -> None:
        """Over the spans or chunks of each sequence, as `first` says: see the kernel."""
        s, size = self.shape, initial[0, 0].numel()
        self._launch(
            information.running_sum, (len(self.plan.whole) * s.H, parts(size, 128)),
            x, initial, total, first, s.H, size, REVERSE=reverse, ENTRIES=16, BLOCK=128, num_warps=4,
        )  # fmt: skip

    def _rows_by_chunk(self, over: Tensor) -> Tensor:
        """Memory for [chunks, H, CHUNK, D] float32: that of `over` where its chunks are of the same size."""
        s, chunks = self.shape, len(self.plan.chunks)
        if over.nbytes == 4 * chunks * s.H * CHUNK * s.D:
            return over.flatten().view(torch.float32).view(chunks, s.H, CHUNK, s.D)
        return over.new_empty(chunks, s.H, CHUNK, s.D, dtype=torch.float32)

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        options["maxnreg"] = options.get("maxnreg") or self.shape.most
        if self.dry is None:
            kernel[grid](*arguments, **options)
        else:
            self.dry.append(kernel.warmup(*arguments, grid=grid, **options))

    def _tiles(self, BV: int) -> dict[str, int]:
        return {"BD": self.shape.BD, "BV": BV}

    def _even_tiles(self, BV: int) -> dict[str, int]:
        """No narrower than the assembler gets right: see EVEN."""
        s = self.shape
        return {"BD": max(s.BD, s.even), "BV": max(BV, s.even)}

    def _how(self, *names: str) -> dict[str, Any]:
        """The compile-time switches of these names."""
        s = self.settings
        switches = {
            "ELU": s.feature_map == "elu1",
            "UNIT": s.normalize_key,
            "NORMALIZE": s.normalizer,
            "GAIN": s.gain,
            "UPDATE": s.update_penalty,
            "REFRESH": s.beat is not None,
        }
        return {name: switches[name] for name in names}
