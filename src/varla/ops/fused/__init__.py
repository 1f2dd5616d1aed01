"""`directions` and `memory` fused, where that is faster: VLA in chunks, VLA by kernels, one token of VLA."""
