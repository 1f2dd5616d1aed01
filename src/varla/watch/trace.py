"""What every layer of a model writes into its memory while the model reads a sequence."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from varla.layers import Layer
from varla.layers.writes import Writes


@dataclass(frozen=True)
class LayerTrace:
    """One layer: its place in the model, its mechanism, and what it writes, B = 1."""

    index: int
    mechanism: str
    writes: Writes


@torch.no_grad()
def trace(model: nn.Module, tokens: Tensor, name: str = "the model") -> tuple[list[LayerTrace], Tensor]:
    """(the layers that keep a memory matrix, logits [T, vocab_size]) for tokens [T].

    `model` is the lab's `Backbone` or a `VarlaForCausalLM`. Refused if all its layers are softmax attention.
    """
    mixers = [module for module in model.modules() if isinstance(module, Layer)]
    recurrent = [(i, mixer) for i, mixer in enumerate(mixers) if "S" in mixer.state_class.LAYOUT]
    if not recurrent:
        found = ", ".join(sorted({mixer.name for mixer in mixers}))
        raise ValueError(f"{name} keeps no memory matrix to watch: its layers are {found}, which keep keys and values")
    seen: dict[int, Tensor] = {}

    def remember(i: int) -> Any:
        return lambda _, inputs: seen.update({i: inputs[0]})

    hooks = [mixer.register_forward_pre_hook(remember(i)) for i, mixer in recurrent]
    try:
        found = model(tokens[None])
    finally:
        for hook in hooks:
            hook.remove()
    logits: Tensor = found[0] if isinstance(found, tuple) else found.logits
    return [LayerTrace(i, mixer.name, mixer.writes(seen[i])) for i, mixer in recurrent], logits[0]
