"""What all models of the family share: how weights are initialised, saved and loaded."""

import math
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from varla.layers.gates import CopiedLinear, SoftplusGate
from varla.models.configuration import VarlaConfig

_README = """---
library_name: varla
tags: [varla]
---
A model of the type `varla`. Transformers knows this type after `import varla.models`. Without that import, its error
advises an upgrade, which does not help.

    pip install "varla[hf]"      # or, in a clone of varla: pip install -e ".[hf]"

```python
import varla.models
from transformers import AUTO_CLASS

model = AUTO_CLASS.from_pretrained("this folder")
```
"""


class VarlaPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """What all models share: how weights are initialised and loaded."""

    AUTO_CLASS = "AutoModel"  # which of transformers' loads it
    NEW_WEIGHTS: tuple[str, ...] = ()  # of a head that may be new: transformers reports them if they are missing

    config: VarlaConfig
    config_class = VarlaConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["VarlaBlock"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _supports_sdpa = True
    _is_stateful = True  # no assisted generation: states cannot be taken back

    def __init__(self, config: VarlaConfig):
        """The configuration is checked again: it may have been changed since it was made."""
        if isinstance(config, VarlaConfig):
            config.check()
        super().__init__(config)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Weights are drawn from N(0, initializer_range).

        Residual output projections are scaled by 1 / sqrt(2 * layers). Convolutions start as PyTorch's own: filters
        drawn at 0.02 would let almost nothing through. Biases and rates of gates begin as in the lab.
        """
        if getattr(module, "ends_branch", False):
            init.normal_(
                module.weight, 0.0, self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            )
        elif isinstance(module, nn.Conv1d):
            init.uniform_(module.weight, -(bound := 1 / math.sqrt(module.kernel_size[0])), bound)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, CopiedLinear):  # the other one has been drawn or loaded by now
            for name, parameter in module.named_parameters():
                init.copy_(parameter, module.other[0].get_parameter(name))
        elif isinstance(module, SoftplusGate):
            for name, value in module.initial().items():
                init.copy_(getattr(module, name), value)
        else:
            super()._init_weights(module)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """As in transformers, but unreadable, misshapen, missing and unexpected weights are errors.

        Transformers only logs a report of the last three, or raises an error that refers to that report. With
        output_loading_info=True the caller gets that report, and missing and unexpected weights are no errors. A new
        head (`NEW_WEIGHTS`) may always be missing: its weights are drawn, and the report is logged.
        """
        wants_info = kwargs.pop("output_loading_info", False)
        reshape = kwargs.pop("ignore_mismatched_sizes", False)
        where = pretrained_model_name_or_path
        try:
            model, info = super().from_pretrained(
                where, *model_args, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs
            )
        except (SafetensorError, UnpicklingError) as error:
            # The message of an UnpicklingError is dropped: it advises to run code from the file.
            what = f": {error}" if isinstance(error, SafetensorError) else ""
            raise ValueError(f"{where}: its weights cannot be read (damaged, or cut short){what}") from error
        if info["mismatched_keys"] and not reshape:
            name, theirs, ours = min(info["mismatched_keys"])
            raise ValueError(
                f"{where} does not fit its configuration: {name} has shape {list(theirs)} in the checkpoint and "
                f"{list(ours)} by config.json"
            )
        if wants_info:
            return model, info
        if missing := sorted(set(info["missing_keys"]) - set(cls.NEW_WEIGHTS)):
            raise ValueError(
                f"{where} does not hold all weights of this {cls.__name__}: {len(missing)} are missing, {missing[0]!r} "
                "among them. Is it a checkpoint of another model?"
            )
        if others := sorted(info["unexpected_keys"]):
            raise ValueError(
                f"{where} does not fit its configuration: it holds {len(others)} weights that this {cls.__name__} has "
                f"not, {others[0]!r} among them. Is config.json another model's?"
            )
        return model

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """As in transformers, and a README.md that says what to import, unless there is one."""
        if kwargs.get("state_dict") is None and any(hasattr(x, "full_tensor") for x in self.parameters()):
            raise ValueError(
                "the weights are spread over a mesh, this rank has a part of each: gather them, as docs/scale.md "
                "shows, and give them as state_dict"
            )
        super().save_pretrained(save_directory, *args, **kwargs)
        readme = Path(save_directory) / "README.md"
        if kwargs.get("is_main_process", True) and not readme.exists():
            readme.write_text(_README.replace("AUTO_CLASS", self.AUTO_CLASS), encoding="utf-8")
