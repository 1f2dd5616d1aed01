"""The specification of `memory`: lines 19 to 24 of Algorithm 1, one token at a time, in plain PyTorch with autograd.

Names follow the paper: S is the memory, z the normaliser, e the residual. The write direction a comes from `directions`
(VLA), or is the key (linear attention, the delta rules).
"""

import torch
from torch import Tensor

from varla.ops.algebra import apply, dot, outer
from varla.ops.features import Features
from varla.ops.memory.settings import MemorySettings


def memory_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    a: Tensor | None,
    beta: Tensor | None,
    decay: Tensor | None,
    S: Tensor,
    z: Tensor | None,
    settings: MemorySettings,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(o [B, T, H, Dv], S, z) from raw q, k [B, T, H, D], v [B, T, H, Dv], S [B, H, Dv, D] and z [B, H, D].

    a [B, T, H, D]: write directions, None for the key. beta [B, T, H, 1]: write strengths, None for 1. decay
    [B, T, H, 1 or Dv]: logarithms of the decay of S and z, None for no decay. z None: z is not summed.
    """
    scale, outputs = settings.scale_of(q.shape[-1]), []
    # Unbound once: the gradient of an index would be as large as the whole tensor, for every token.
    tokens = [[None] * q.shape[1] if x is None else x.unbind(1) for x in (q, k, v, a, beta, decay)]
    for q_t, k_t, v_t, a_t, beta_t, decay_t in zip(*tokens, strict=True):
        key = Features(k_t, settings.feature_map, settings.normalize_key)  # lines 6-7: feature map, unit key
        along = key.y if a_t is None else a_t
        along = along if beta_t is None else beta_t * along
        d = None if decay_t is None else decay_t.exp()
        if d is not None and settings.decay_first:
            S = d[..., None] * S
        e = v_t - apply(S, key.y) if settings.error else v_t  # line 19: prediction residual
        if d is not None and not settings.decay_first:
            S = d[..., None] * S
        S = S + outer(e, along)  # line 20: eq. (s-update)
        query = Features(q_t, settings.feature_map, settings.normalize_query).y * scale  # lines 22-24: eq. (output)
        if z is not None:
            z = (z if d is None else d.to(z.dtype) * z) + key.F
        o = apply(S, query)
        if settings.normalizer and z is not None:
            o = o / dot(z.to(query.dtype), query).clamp(min=settings.eps)
        outputs.append(o)
    return torch.stack(outputs, 1), S, z
