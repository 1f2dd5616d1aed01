"""Variational Linear Attention: linear-time attention whose memory is an online regularised least-squares fit."""

from varla.ops import (
    Backend,
    DeltaRuleState,
    LinearAttentionState,
    State,
    VLAState,
    backends,
    decayed_delta_rule,
    decayed_delta_rule_step,
    delta_rule,
    delta_rule_step,
    linear_attention,
    linear_attention_step,
    vla,
    vla_step,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "Backend",
    "DeltaRuleState",
    "LinearAttentionState",
    "State",
    "VLAState",
    "__version__",
    "backends",
    "decayed_delta_rule",
    "decayed_delta_rule_step",
    "delta_rule",
    "delta_rule_step",
    "linear_attention",
    "linear_attention_step",
    "vla",
    "vla_step",
]
