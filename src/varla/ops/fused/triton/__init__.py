"""VLA by kernels: whole sequences, and one token in one launch."""
