"""Compositions that pay as one: VLA in chunks, VLA by kernels, one token of VLA."""
