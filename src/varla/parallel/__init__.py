"""Sequences, and models, over several ranks. Models know nothing of it.

`Split` says which tokens each rank has; operators, layers and models take it as `cu_seqlens`. `apply_parallelism` makes
a model split its batches and shard its weights over a device mesh.
"""

from varla.ops.split import Split as Split
from varla.parallel.apply import apply_parallelism as apply_parallelism

__all__ = ["Split", "apply_parallelism"]
