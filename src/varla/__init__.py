"""Variational Linear Attention: linear-time attention whose memory is an online regularised least-squares fit."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varla.ops import (
        Backend,
        DeltaRuleState,
        DirectionState,
        ForgettingDirectionState,
        ForgettingState,
        LinearAttentionState,
        MemoryState,
        MesaState,
        State,
        VLAState,
        backends,
        decayed_delta_rule,
        decayed_delta_rule_step,
        delta_rule,
        delta_rule_step,
        directions,
        linear_attention,
        linear_attention_step,
        memory,
        mesa,
        mesa_step,
        vla,
        vla_step,
    )
    from varla.session import Session

__version__ = "0.1.0"

__all__ = [
    "Backend",
    "DeltaRuleState",
    "DirectionState",
    "ForgettingDirectionState",
    "ForgettingState",
    "LinearAttentionState",
    "MemoryState",
    "MesaState",
    "Session",
    "State",
    "VLAState",
    "__version__",
    "backends",
    "decayed_delta_rule",
    "decayed_delta_rule_step",
    "delta_rule",
    "delta_rule_step",
    "directions",
    "linear_attention",
    "linear_attention_step",
    "memory",
    "mesa",
    "mesa_step",
    "vla",
    "vla_step",
]

if not TYPE_CHECKING:  # a type checker that sees __getattr__ accepts any name

    def __getattr__(name: str) -> Any:
        """Import operators, session and torch at the first use of a name: `varla --help` needs none of them."""
        if name not in __all__:
            raise AttributeError(f"module 'varla' has no attribute {name!r}")
        from importlib import import_module

        module = import_module("varla.session" if name == "Session" else "varla.ops")
        value = globals()[name] = getattr(module, name)
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
