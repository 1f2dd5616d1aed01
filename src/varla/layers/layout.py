"""Which tokens of a padded batch are read: the real ones, laid end to end, with `cu_seqlens` between the rows.

A mask cannot remove what a recurrent layer has read: it is in the state. So padding never reaches a layer. The models
share this code (`varla.models.layout`): they lay a batch out once for all layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

BOTH = "give cu_seqlens or attention_mask, not both: packed sequences have no padding"


@dataclass(frozen=True)
class Layout:
    """Tokens of a batch [B, T] as one row of L tokens in N sequences.

    index [L]: which of the B * T tokens they are, None for all. cu_seqlens [N + 1], on the CPU, where the operators
    read it.
    """

    batch: tuple[int, int]
    index: Tensor | None
    cu_seqlens: Tensor

    @property
    def rows(self) -> int:
        """Number of sequences, N."""
        return self.cu_seqlens.shape[0] - 1

    def pack(self, x: Tensor) -> Tensor:
        """[B, T, *] to [1, L, *]."""
        flat = x.flatten(0, 1)
        return (flat if self.index is None else flat[self.index])[None]

    def unpack(self, x: Tensor) -> Tensor:
        """[1, L, *] to [B, T, *], zeros where there is padding."""
        if self.index is None:
            return x.view(*self.batch, *x.shape[2:])
        flat = x.new_zeros(self.batch[0] * self.batch[1], *x.shape[2:])
        return flat.index_copy(0, self.index, x[0]).view(*self.batch, *x.shape[2:])


def padding_layout(batch: Sequence[int], device: torch.device, attention_mask: Tensor | None) -> Layout | None:
    """How to read a batch of [B, T] tokens on this device, one sequence a row. None: read all of them."""
    B, T = batch
    keep = None if attention_mask is None else check_mask(attention_mask, B, T)
    return None if keep is None else Layout((B, T), *real_tokens(keep, device))


def real_tokens(keep: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """(index [L] on the device, cu_seqlens [B + 1] on the CPU) of the tokens to read, keep [B, T]."""
    return keep.flatten().nonzero()[:, 0].to(device), pad(keep.sum(1).cumsum(0), (1, 0)).cpu()


def check_mask(mask: Any, B: int, T: int, past: int = 0) -> Tensor | None:
    """Which of the T tokens of this call are read, [B, T]; None for all.

    After `past` other tokens, the mask may also be of all of them, [B, past + T].
    """
    if not isinstance(mask, Tensor) or mask.dim() != 2:
        found = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask must have shape [B, T], 1 for tokens and 0 for padding, got {found}")
    allowed = {T, past + T}
    if mask.shape[0] != B or mask.shape[1] not in allowed:
        lengths = " or ".join(f"[{B}, {length}]" for length in sorted(allowed))
        raise ValueError(f"attention_mask must have shape {lengths}, got {list(mask.shape)}")
    keep = read_mask(mask[:, mask.shape[1] - T :])
    if keep is not None and mask.is_floating_point() and not bool(mask.any()):
        raise ValueError(
            "attention_mask must be 1 for tokens and 0 for padding, got a mask of floats that are all 0; is it an "
            "additive mask? Then attention_mask == 0 says the same"
        )
    return keep


def read_mask(mask: Tensor) -> Tensor | None:
    """The mask as booleans, True for tokens to read; None if all are. Raise unless it holds only 1 and 0."""
    keep = mask == 1
    if bool(keep.all()):
        return None
    wrong = ~keep & (mask != 0)
    if bool(wrong.any()):
        found = mask[wrong][0].item()
        hint = "; is it an additive mask? Then attention_mask == 0 says the same" if found < 0 else ""
        raise ValueError(f"attention_mask must be 1 for tokens and 0 for padding, got {found}{hint}")
    return keep
