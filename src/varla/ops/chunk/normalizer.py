"""The denominator: o_t = S_t q_t / max(q_t . z_t, eps), z_t the running sum of key features.

Shapes: Q, F [M, n, D], reads and outputs [M, n, Dv], z0 [M, D] the sum before each chunk, where M = G N.
"""

import torch
from torch import Tensor

from varla.ops.chunk.algebra import by_chunk


def scan(F: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """(z before each chunk [M, D], z after the last [N, D]) from z [N, D] before the first."""
    total = torch.cat((z[None], by_chunk(F.sum(1), z.shape[0]))).cumsum(0)
    return total[:-1].flatten(0, 1), total[-1]


class Normalizer:
    """Divides a segment's reads. Switched off, it lets them through; z is accumulated either way."""

    def __init__(self, Q: Tensor, F: Tensor, z0: Tensor, eps: float, on: bool):
        """Compute all denominators D [M, n, 1]."""
        self.Q, self.eps, self.on = Q, eps, on
        if on:
            self.z = F.cumsum(1).add_(z0[:, None])
            self.D = (Q * self.z).sum(-1, keepdim=True)
            self.inverse = 1 / self.D.clamp(min=eps)

    def divide(self, x: Tensor) -> Tensor:
        """Reads to outputs; and gradients of outputs to gradients of reads."""
        return x * self.inverse if self.on else x

    def backward(self, dread: Tensor, read: Tensor, dz: Tensor) -> tuple[Tensor | float, Tensor, Tensor]:
        """Adjoint of the denominators. dz [N, D] is the gradient of z after the last chunk.

        Returns (dQ, dF, gradient of z before the first chunk).
        """
        if not self.on:
            return 0.0, dz.repeat(self.Q.shape[0] // dz.shape[0], 1)[:, None], dz
        dD = torch.where(self.eps <= self.D, -(dread * read).sum(-1, keepdim=True) * self.inverse, 0)
        sent = dD * self.Q  # what each token sends into the sum it read
        later = torch.cat((by_chunk(sent.sum(1), dz.shape[0]), dz[None]))  # of each chunk, and of all that follow
        later = later.flip(0).cumsum(0).flip(0)
        dF = sent.flip(1).cumsum(1).flip(1).add_(later[1:].flatten(0, 1)[:, None])
        return dD * self.z, dF, later[0]
