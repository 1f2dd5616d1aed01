"""The memory microscope: one HTML page that shows what a model's memories hold after every token.

layers, logits = trace(model, tokens)        # what every layer writes
page.write(path, tokens, [Watched(...)])     # the page runs the recurrences itself, token by token
"""

from varla.watch.page import Token, Watched, write
from varla.watch.trace import LayerTrace, trace

__all__ = ["LayerTrace", "Token", "Watched", "trace", "write"]
