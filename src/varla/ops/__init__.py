"""The operators: every mechanism as a function of tensors. Each has several exact forms with one interface."""

from varla.ops.backends import Backend, backends
from varla.ops.decayed_delta_rule import decayed_delta_rule, decayed_delta_rule_step
from varla.ops.delta_rule import delta_rule, delta_rule_step
from varla.ops.directions import directions
from varla.ops.linear_attention import linear_attention, linear_attention_step
from varla.ops.memory import memory
from varla.ops.state import (
    DeltaRuleState,
    DirectionState,
    LinearAttentionState,
    MemoryState,
    State,
    VLAState,
)
from varla.ops.vla import vla, vla_step

__all__ = [
    "Backend",
    "DeltaRuleState",
    "DirectionState",
    "LinearAttentionState",
    "MemoryState",
    "State",
    "VLAState",
    "backends",
    "decayed_delta_rule",
    "decayed_delta_rule_step",
    "delta_rule",
    "delta_rule_step",
    "directions",
    "linear_attention",
    "linear_attention_step",
    "memory",
    "vla",
    "vla_step",
]
