"""Code that all chunk forms share: plans, windows on the tokens, the loop over segments, the PyTorch operator."""
