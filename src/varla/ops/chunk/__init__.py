"""The chunk-wise form: exact, made of matrix products, forward and backward (docs/math.md)."""

from varla.ops.chunk.op import chunk, encode

__all__ = ["chunk", "encode"]
