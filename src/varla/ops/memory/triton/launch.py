"""Launches the kernels of `memory` (kernels.py, kernels_backward.py) in order, and holds the buffers between them.

Forward: `prepare`, `scan`, `read`. Backward: `turn` and `scan_backward`, `unread`, `finish`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from varla.ops.memory.settings import MemorySettings
from varla.ops.memory.triton import kernels, kernels_backward
from varla.ops.triton.launcher import Launcher, Precision
from varla.ops.triton.plan import CHUNK, parts


class Tokens(NamedTuple):
    """Contiguous queries, keys, values, write directions [tokens, H, *] and gates [tokens, H, 1]; see Launcher.run."""

    q: Tensor
    k: Tensor
    v: Tensor
    a: Tensor  # in the dtype of the buffers
    beta: Tensor
    decay: Tensor


class Kept(NamedTuple):
    """What the forward keeps for the backward.

    S0 and E are the larger half. Recomputing them would take a tenth of the time of a training step.
    """

    norm: Tensor  # [tokens, H]: 1 / |F| of the keys' features F; empty unless keys are normalised
    denominator: Tensor  # [tokens, H]
    since: Tensor  # [tokens, H]: the decay since the chunk's start; empty without decay
    weight: Tensor  # [tokens, H]: beta times the decay to the chunk's end; empty without gates
    tinv: Tensor  # [chunks, H, 64, 64]: T^-1; empty unless errors are written
    W: Tensor  # [chunks, H, 64, 64]
    E: Tensor  # [tokens, H, DV]: the errors; empty if v itself is written
    S0: Tensor  # [chunks, H, DV, D]: S before every chunk
    z0: Tensor  # [chunks, H, D]: z before every chunk


class Gradients(NamedTuple):
    """Gradients of q, k (without the part through a), v [tokens, H, *], a or A k, the gates [tokens, H], and the state.

    Those of gates that are not given are empty.
    """

    dq: Tensor
    dk: Tensor
    dv: Tensor
    da: Tensor
    dbeta: Tensor
    ddecay: Tensor
    dS: Tensor
    dz: Tensor


class Gain(NamedTuple):
    """How a was computed from A k. With it, `finish` computes the gradient of A k instead of that of a."""

    kind: str
    by: Tensor  # [tokens, H]: the factor from A k to a


@dataclass(frozen=True)
class MemoryLauncher(Launcher):
    """One call of `memory`. The kernels apply the feature map.

    Tiles of `prepare` and `read` have rows of at least launcher.MIN_ROW_BYTES, which says why; those of `scan_backward`
    in float32, and those of `unread` and `finish` with decays, do too.
    """

    inputs, state, output_like = "q k v a beta? decay?", "S z", 2

    settings: MemorySettings

    @property
    def constants(self) -> tuple[Any, ...]:
        """See Launcher."""
        c = self.settings
        return c.feature_map, c.normalize_key, c.normalizer, c.error

    @staticmethod
    def buffers(inputs: Sequence[Any], chunks: int, spans: int, settings: MemorySettings) -> list[Tensor]:
        """See Launcher and `Kept`."""
        q, _, v, *_, beta, decay = inputs
        tokens, (H, D), DV = q.shape[0] * q.shape[1], q.shape[2:], v.shape[-1]
        buffer = Precision.of(q.dtype, int(D)).buffer  # under torch.compile, D may be symbolic
        kept = Kept(
            norm=q.new_empty(tokens if settings.normalize_key else 0, H, dtype=torch.float32),
            denominator=q.new_empty(tokens, H, dtype=torch.float32),
            since=q.new_empty(0 if decay is None else tokens, H, dtype=torch.float32),
            weight=q.new_empty(0 if decay is None and beta is None else tokens, H, dtype=torch.float32),
            tinv=q.new_empty(chunks if settings.error else 0, H, CHUNK, CHUNK, dtype=buffer),
            W=q.new_empty(chunks, H, CHUNK, CHUNK, dtype=buffer),
            E=q.new_empty(tokens if settings.error else 0, H, DV, dtype=buffer),
            S0=q.new_empty(chunks, H, DV, D, dtype=buffer),
            z0=q.new_empty(chunks, H, D, dtype=torch.float32),
        )
        return list(kept)

    def run(self, x: Sequence[Any], state: Sequence[Tensor], t: Tensor, kept: list[Tensor]) -> Sequence[Tensor]:
        """See Launcher."""
        q, k, v, a, *gates = x
        return self.forward(Tokens(q, k, v, a.to(self.precision.buffer), *gates), Kept(*kept), *state)

    def run_backward(
        self, x: Sequence[Any], t: Tensor, kept: Sequence[Tensor], do: Tensor, dfinal: Sequence[Tensor]
    ) -> tuple[Sequence[Any], Sequence[Tensor]]:
        """See Launcher."""
        q, k, v, a, *gates = x
        g = self.backward(Tokens(q, k, v, a.to(self.precision.buffer), *gates), Kept(*kept), do, *dfinal)
        return (g.dq, g.dk, g.dv, g.da, g.dbeta, g.ddecay), (g.dS, g.dz)

    def forward(self, x: Tokens, kept: Kept, S: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Fill `kept`, and return (o [tokens, H, DV], S, z), with the state after the last token."""
        s, plan, c = self.shape, self.plan, self.settings
        narrow, tiles = self._narrow
        E = kept.E if c.error else x.v  # the errors or values that are written along a
        tk = torch.empty_like(x.a) if c.error else x.a
        # Fills tk, norm, tinv and W. E gets Tv, and z0 the sum of each chunk's key features.
        self.launch(
            kernels.prepare, (len(plan.chunks) * s.H,),
            x.q, x.k, x.v, x.a, x.beta, x.decay, kept.norm, kept.since, kept.weight, kept.tinv, kept.W, tk, E, kept.z0,
            plan.chunks, s.H, s.D, s.DV,
            BD=max(s.BD, s.min_row), BV=max(s.BV, s.min_row), MAP=c.feature_map, UNIT=c.normalize_key, ERROR=c.error,
            **self._gates, DOT=self.precision.dot, SOLVE=self.precision.times, num_warps=4,
            maxnreg=168 if s.half and s.BD < 128 else None,
        )  # fmt: skip
        # Fills S0, and turns E into the errors and z0 into z before every chunk.
        final_S, final_z = torch.empty_like(S), torch.empty_like(z)
        self.launch(
            kernels.scan, (len(plan.sequences) * s.H, tiles),
            tk, E, x.a, kept.since, kept.weight, S, z, kept.z0, kept.S0, final_S, final_z, plan.chunks,
            plan.chunk_first, s.H, s.D, s.DV,
            BD=s.BD, BV=narrow, ERROR=c.error, **self._weights, DOT=self.precision.dot,
            num_warps=4, num_stages=s.scan_stages,
        )  # fmt: skip
        del tk
        o = torch.empty_like(x.v)
        self.launch(
            kernels.read, (len(plan.chunks) * s.H, -(-s.DV // s.read_values)),
            x.q, x.k, x.v, x.decay, kept.norm, kept.since, kept.W, kept.S0, kept.z0, o, kept.denominator,
            plan.chunks, s.H, s.D, s.DV, c.eps,
            BD=max(s.BD, s.min_row), BV=max(s.read_values, s.min_row), MAP=c.feature_map, UNIT=c.normalize_key,
            NORMALIZE=c.normalizer, ERROR=c.error, DECAY=self._decays, DOT=self.precision.dot,
            num_warps=s.warps, maxnreg=s.registers,
        )  # fmt: skip
        return o, final_S, final_z

    def backward(
        self, x: Tokens, kept: Kept, do: Tensor, dS: Tensor, dz: Tensor, gain: Gain | None = None
    ) -> Gradients:
        """The gradients. With `gain`, da is the gradient of A k instead, [chunks, H, CHUNK, D] float32."""
        s, plan, c = self.shape, self.plan, self.settings
        E = kept.E if c.error else x.v
        per_chunk = len(plan.chunks) * s.H
        unread, finish = self._backward_options
        dv, dS_initial = torch.empty_like(x.v), torch.empty_like(dS)
        dSs = x.a.new_empty(len(plan.chunks), s.H, s.DV, s.D)
        self._scan_backward(x, kept, do, dS, dSs, dv, dS_initial)
        dD, dzs, dq = torch.empty_like(kept.denominator), torch.empty_like(kept.z0), torch.empty_like(x.q)
        by_error = "beta" in self.given and c.error and dv.dtype == torch.bfloat16
        dbeta, ddecay = torch.empty_like(kept.weight), torch.empty_like(kept.since)
        self.launch(
            kernels_backward.unread, (per_chunk,),
            x.q, x.k, x.a, x.beta, x.decay, kept.norm, E, kept.S0, kept.z0, do, kept.denominator, dv, dD, ddecay, dzs,
            dq, dbeta, plan.chunks, s.H, s.D, s.DV, c.eps,
            MAP=c.feature_map, UNIT=c.normalize_key, NORMALIZE=c.normalizer, ERROR=c.error, **self._gates,
            BY_ERROR=by_error, DOT=self.precision.dot, num_stages=s.stages, **unread,
        )  # fmt: skip
        dz_initial = torch.empty_like(dz)
        if not c.normalizer:
            dzs.zero_()
        if not self._decays:
            self.running_sum(dzs, dz, dz_initial, plan.chunk_first, reverse=True)
        else:
            self.launch(
                kernels_backward.decayed_sum, (len(plan.sequences) * s.H,),
                dzs, dz, dz_initial, kept.since, plan.chunks, plan.chunk_first, s.H, s.D, BD=s.BD, num_warps=1,
            )  # fmt: skip
        dk = torch.empty_like(x.a)
        da = torch.empty_like(x.a) if gain is None else self._rows_by_chunk(dSs)
        self.launch(
            kernels_backward.finish, (per_chunk,),
            x.q, x.k, x.a, x.beta, x.decay, kept.norm, kept.denominator if gain is None else gain.by, E, kept.S0,
            kept.z0, do, kept.denominator, dD, dv, dSs, dzs, dk, da, dbeta, ddecay, plan.chunks, s.H, s.D, s.DV,
            c.eps,
            MAP=c.feature_map, UNIT=c.normalize_key, NORMALIZE=c.normalizer, ERROR=c.error,
            GAIN="raw" if gain is None else gain.kind, BY_CHUNK=gain is not None, **self._gates,
            BY_ERROR=by_error, DOT=self.precision.dot, num_stages=s.stages, **finish,
        )  # fmt: skip
        return Gradients(dq, dk, dv, da, dbeta, ddecay, dS_initial, dz_initial)

    @cached_property
    def _narrow(self) -> tuple[int, int]:
        """(values in a tile of the scans, number of tiles). With few heads, small tiles are needed to fill a GPU."""
        s = self.shape
        idle = len(self.plan.sequences) * s.H * parts(s.DV, s.scan_values[1]) < 128
        narrow = s.scan_values[0 if idle else 1]
        return narrow, parts(s.DV, narrow)

    def _scan_backward(
        self, x: Tokens, kept: Kept, do: Tensor, dS: Tensor, dSs: Tensor, dv: Tensor, initial: Tensor
    ) -> None:
        """Fill dSs (dS after every chunk), dv, and initial (dS before the first chunk)."""
        s, plan, c, narrow = self.shape, self.plan, self.settings, min(self._narrow[0], 32)
        narrow = narrow if s.half else max(narrow, s.min_row)
        ta, B, K = x.a, x.q, x.a
        if c.error or self._weights["WEIGHT"]:
            ta, B, K = (torch.empty_like(x.a) for _ in range(3))
            self.launch(
                kernels_backward.turn, (len(plan.chunks) * s.H,),
                x.q, x.k, x.a, kept.norm, kept.since, kept.weight, kept.tinv, kept.W, ta, B, K, plan.chunks, s.H, s.D,
                BD=s.BD, MAP=c.feature_map, UNIT=c.normalize_key, ERROR=c.error, **self._weights,
                DOT=self.precision.dot, num_warps=s.warps, maxnreg=s.registers,
            )  # fmt: skip
        self.launch(
            kernels_backward.scan_backward, (len(plan.sequences) * s.H, parts(s.DV, narrow)),
            ta, B, K, kept.W, kept.since, do, kept.denominator, dS, dSs, dv, initial,
            plan.chunks, plan.chunk_first, s.H, s.D, s.DV, c.eps,
            BD=s.BD, BV=narrow, NORMALIZE=c.normalizer, ERROR=c.error, DECAY=self._decays,
            DOT=self.precision.dot, num_warps=4, num_stages=s.scan_stages,
        )  # fmt: skip

    @cached_property
    def _decays(self) -> bool:
        return "decay" in self.given

    @cached_property
    def _backward_options(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tiles, warps and registers of `unread` and `finish`. With decays they hold more (benchmarks/RESULTS.md)."""
        s = self.shape
        unread: dict[str, Any] = {"BD": s.BD, "BV": s.BV, "num_warps": 8, "maxnreg": s.registers}
        finish: dict[str, Any] = {"BD": s.BD, "BV": min(s.BV, 32), "num_warps": s.finish_warps}
        if self._decays:
            values = s.BV if s.half else min(s.BV, 32)
            unread |= {"BD": max(s.BD, s.min_row), "BV": max(values, s.min_row)}
            unread |= {"num_warps": s.decay_warps, "maxnreg": None}
            finish |= {"BD": max(s.BD, s.min_row), "num_warps": 4 if s.half and s.BD < 128 else 8}
        return unread, finish

    @cached_property
    def _gates(self) -> dict[str, bool]:
        """Which gates there are, for kernels that read them."""
        return {"BETA": "beta" in self.given, "DECAY": self._decays}

    @cached_property
    def _weights(self) -> dict[str, bool]:
        """Which gates there are, for kernels that read `since` and `weight`."""
        return {"WEIGHT": "beta" in self.given or self._decays, "DECAY": self._decays}

    def _rows_by_chunk(self, over: Tensor) -> Tensor:
        """A buffer [chunks, H, CHUNK, D] float32. It reuses the memory of `over` if that has the same size."""
        s, chunks = self.shape, len(self.plan.chunks)
        if over.nbytes == 4 * chunks * s.H * CHUNK * s.D:
            return over.flatten().view(torch.float32).view(chunks, s.H, CHUNK, s.D)
        return over.new_empty(chunks, s.H, CHUNK, s.D, dtype=torch.float32)
