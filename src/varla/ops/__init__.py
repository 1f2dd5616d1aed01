"""The mathematics: every mechanism as a function of tensors, in several exact forms behind one contract."""

from varla.ops.backends import Backend, backends
from varla.ops.decayed_delta_rule import decayed_delta_rule, decayed_delta_rule_step
from varla.ops.delta_rule import delta_rule, delta_rule_step
from varla.ops.linear_attention import linear_attention, linear_attention_step
from varla.ops.state import DeltaRuleState, LinearAttentionState, State, VLAState
from varla.ops.vla import vla, vla_step

__all__ = [
    "Backend",
    "DeltaRuleState",
    "LinearAttentionState",
    "State",
    "VLAState",
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
