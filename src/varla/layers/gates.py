"""The gates of Gated DeltaNet and Gated VLA, computed from a layer's input: write strength, decay, penalty strength.

Each gate is one number a head and token. Decay and penalty strength are a softplus of a small number: bfloat16 would
round their biases by percents, so they are computed in float32 under autocast, too.
"""

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from varla.arguments import check_flag
from varla.layers.base import Layer
from varla.ops.features import Features

SHORTEST, LONGEST = 16, 4096  # tokens: the time scales between which the heads of a layer begin
RATE = 8.0  # the mean of the initial rates in Gated DeltaNet


class CopiedLinear(nn.Linear):
    """A projection that begins as a copy of another one, which must be drawn before it."""

    def __init__(self, other: nn.Linear):
        """It has the sizes of the other."""
        self.other = (other,)  # in a tuple, or it would be a part of this module
        super().__init__(other.in_features, other.out_features, bias=other.bias is not None)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Copy the other as it is now."""
        for name, parameter in self.named_parameters():
            parameter.copy_(self.other[0].get_parameter(name))


class WriteStrength(nn.Linear):
    """beta = most * sigmoid(W x + b), one a head: x [B, T, d_model] to beta [B, T, H]."""

    def __init__(self, d_model: int, n_heads: int, *, bias: bool, most: int):
        """`most` is 1, or 2: above 1, I - beta k k^T has a negative eigenvalue."""
        super().__init__(d_model, n_heads, bias=bias)
        self.most = most

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        beta = super().forward(x).sigmoid()
        return beta if self.most == 1 else self.most * beta


class SoftplusGate(nn.Module, ABC):
    """softplus(W x + bias), one a head. The bias sets where the gate begins, also in layers without biases.

    `initial` gives the first values of the gate's own parameters. They are not drawn: they depend on the head alone.
    Weight decay would pull them towards an arbitrary value, so optimizers should not apply it to them (`undecayed`).
    """

    def __init__(self, d_model: int, n_heads: int):
        """W [H, d_model] begins as any projection does."""
        super().__init__()
        self.projection = nn.Linear(d_model, n_heads, bias=False)
        self.bias = nn.Parameter(torch.empty(n_heads))

    @abstractmethod
    def initial(self) -> dict[str, Tensor]:
        """The first values of the gate's own parameters by name, each float64 [H]."""

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the gate's own parameters to their first values. The projection resets itself."""
        for name, value in self.initial().items():
            getattr(self, name).copy_(value)

    def gate(self, x: Tensor) -> Tensor:
        """softplus(W x + bias): x [B, T, d_model] to [B, T, H], in float32 or wider."""
        y = self.projection(x)
        wide = torch.promote_types(y.dtype, torch.float32)
        return softplus(y.to(wide) + self.bias.to(wide))


class LogDecay(SoftplusGate):
    """log d = -rate * softplus(W x + bias), one a head: Gated DeltaNet's decay.

    For x = 0, the heads begin with time scales 1 / -log d between 16 and 4096 tokens (`time_scales`).
    """

    def __init__(self, d_model: int, n_heads: int):
        """The rate is learned as its logarithm, so that it stays positive."""
        super().__init__(d_model, n_heads)
        self.log_rate = nn.Parameter(torch.empty(n_heads))
        self.reset_parameters()

    def initial(self) -> dict[str, Tensor]:
        """See SoftplusGate."""
        tokens = time_scales(self.bias)
        return {"bias": inverse_softplus(1 / (RATE * tokens)), "log_rate": torch.full_like(tokens, math.log(RATE))}

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, d_model] to log d [B, T, H], at most 0, in float32 or wider."""
        gate = self.gate(x)
        return -self.log_rate.to(gate.dtype).exp() * gate


class PenaltyStrength(SoftplusGate):
    """w = min(softplus(W x + bias), most), one a head.

    For x = 0 it begins in proportion to the head's time scale, which is also where language models take it: a head that
    remembers long holds many keys, and has to keep them apart.
    """

    def __init__(self, d_model: int, n_heads: int, *, start: float, most: float):
        """`start` > 0: w of a head with a time scale of LONGEST tokens. `most`: the most that the operator allows.

        On a GPU, the operator does not check it.
        """
        super().__init__(d_model, n_heads)
        self.start, self.most = start, most
        self.reset_parameters()

    def initial(self) -> dict[str, Tensor]:
        """See SoftplusGate."""
        return {"bias": inverse_softplus(self.start * time_scales(self.bias) / LONGEST)}

    def forward(self, x: Tensor) -> Tensor:
        """x [B, T, d_model] to w [B, T, H], 0 to `most`, in float32 or wider."""
        return self.gate(x).clamp(max=self.most)


def time_scales(heads: Tensor) -> Tensor:
    """How many tokens each head of [H] remembers at first, float64 [H]: even steps of the logarithm, shortest first."""
    H = heads.shape[0]
    place = (torch.arange(H, dtype=torch.float64, device=heads.device) + 0.5) / H
    return SHORTEST * (LONGEST / SHORTEST) ** place


def inverse_softplus(y: Tensor) -> Tensor:
    """x with softplus(x) = y, for y > 0."""
    return y + torch.log(-torch.expm1(-y))


def undecayed(model: nn.Module) -> set[str]:
    """Names of the parameters that weight decay should leave alone: those of gates, except their projections."""
    gates = ((name, module) for name, module in model.named_modules() if isinstance(module, SoftplusGate))
    return {f"{name}.{each}" for name, gate in gates for each, _ in gate.named_parameters(recurse=False)}


class GatedLayer(Layer):
    """A mechanism with a write strength beta and a decay of S, both from its input after the convolution."""

    # q and k: SiLU, then unit length; queries times D ** -0.5.
    FEATURES: ClassVar[dict[str, Any]] = {
        "feature_map": "silu",
        "normalize_query": True,
        "normalize_key": True,
        "scale": None,
    }

    def __init__(self, d_model: int, n_heads: int, *, negative_eigenvalues: bool = False, **shared: Any):
        """`negative_eigenvalues`: beta is up to 2, not 1. A write can then change the sign of what a key holds."""
        check_flag("negative_eigenvalues", negative_eigenvalues)
        super().__init__(d_model, n_heads, **shared)
        bias = self.q.bias is not None
        self.beta = WriteStrength(d_model, n_heads, bias=bias, most=2 if negative_eigenvalues else 1)
        self.decay = LogDecay(d_model, n_heads)

    def gates(self, x: Tensor, dtype: torch.dtype) -> dict[str, Any]:
        """The gates of x [B, T, d_model] by their names in the operator, each [B, T, H] of the operator's dtype."""
        return {"beta": self.beta(x).to(dtype), "decay": self.decay(x).to(dtype)}

    def keys(self, k: Tensor) -> Tensor:
        """The features of raw keys that S is written with."""
        return Features(k, self.FEATURES["feature_map"], self.FEATURES["normalize_key"]).y

    def gate_readings(self, x: Tensor) -> dict[str, Tensor]:
        """See Layer. "decay" is the decay itself, not its logarithm."""
        found = {name: gate[:, 0] for name, gate in self.gates(x, x.dtype).items()}
        return {**found, "decay": found["decay"].exp()}
