"""The checksum of tensors that files carry, so that damage is found when they are read."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, dtypes, shapes and bytes, in sorted order of names."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        x = tensors[name].detach().cpu().contiguous()
        found.update(f"{len(name)} {name} {x.dtype} {list(x.shape)}\n".encode())
        found.update(x.reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
