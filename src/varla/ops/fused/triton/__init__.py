"""VLA by kernels: a whole sequence, and one token in one launch."""
