"""The operators: every mechanism as a function of tensors. Each has several exact forms with one interface.

`varla.__all__` lists these names for users.
"""

from varla.ops.backends import Backend as Backend
from varla.ops.backends import backends as backends
from varla.ops.decayed_delta_rule import decayed_delta_rule as decayed_delta_rule
from varla.ops.decayed_delta_rule import decayed_delta_rule_step as decayed_delta_rule_step
from varla.ops.delta_rule import delta_rule as delta_rule
from varla.ops.delta_rule import delta_rule_step as delta_rule_step
from varla.ops.directions import directions as directions
from varla.ops.linear_attention import linear_attention as linear_attention
from varla.ops.linear_attention import linear_attention_step as linear_attention_step
from varla.ops.memory import memory as memory
from varla.ops.mesa import mesa as mesa
from varla.ops.mesa import mesa_step as mesa_step
from varla.ops.state import DeltaRuleState as DeltaRuleState
from varla.ops.state import DirectionState as DirectionState
from varla.ops.state import ForgettingDirectionState as ForgettingDirectionState
from varla.ops.state import ForgettingState as ForgettingState
from varla.ops.state import LinearAttentionState as LinearAttentionState
from varla.ops.state import MemoryState as MemoryState
from varla.ops.state import MesaState as MesaState
from varla.ops.state import State as State
from varla.ops.state import VLAState as VLAState
from varla.ops.vla import vla as vla
from varla.ops.vla import vla_step as vla_step
