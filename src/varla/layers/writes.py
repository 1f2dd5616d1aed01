"""What a layer writes into its memory at every token, and by which rule: enough to run its recurrence elsewhere.

The symbols are those of docs/family.md, section "The recurrence".
"""

from dataclasses import dataclass

from torch import Tensor

from varla.ops.features import Features, unit
from varla.ops.vla import VLASettings


@dataclass(frozen=True)
class Rule:
    """How S, and A where there is one, follow from the writes. The defaults are those of the delta rule."""

    error: bool = True  # the error v - S k is written; False: the value v itself
    decay_first: bool = True  # S decays before the prediction S k
    reads: str = "S"  # what answers a key: "S"; "S/z", divided by k . z with z the sum of keys; or "SA"
    gain: str | None = None  # how a follows from A k, as in `varla.vla`; None: a = k
    lambda0: float | None = None  # A begins at I / lambda0; None: there is no A
    penalty: float = 0.0  # the strength w of every token, where the layer has no strengths
    refresh: tuple[int, float] | None = None  # (period, eta): A <- A + eta I after every `period` tokens
    forget_at: str | None = None  # A^-1 forgets by the decay, at every "token" or "beat", as in `varla.vla`
    beat: int = 0


@dataclass(frozen=True)
class Writes:
    """The inputs of the recurrence after feature maps and normalisations. None: the mechanism has no such input."""

    rule: Rule
    k: Tensor  # [B, T, H, D]
    v: Tensor  # [B, T, H, Dv]
    beta: Tensor | None = None  # [B, T, H]; None: 1
    decay: Tensor | None = None  # the factor d, not its logarithm: [B, T, H] or [B, T, H, Dv]; None: 1
    u: Tensor | None = None  # [B, T, H, D], of unit length; None: A does not change
    strength: Tensor | None = None  # w [B, T, H]; None: rule.penalty


def penalised(
    settings: VLASettings,
    k: Tensor,
    v: Tensor,
    u: Tensor,
    *,
    beta: Tensor | None = None,
    decay: Tensor | None = None,
    strength: Tensor | None = None,
    forgets: bool = False,
) -> Writes:
    """The writes of `varla.vla` with these settings, from raw k and u."""
    rule = Rule(
        gain=settings.gain,
        lambda0=settings.lambda0,
        penalty=settings.length_of_u(k.shape[-1]) ** 2 if strength is None else 0.0,
        refresh=settings.refresh_beat,
        forget_at=settings.forget_at if forgets else None,
        beat=settings.beat if forgets else 0,
    )
    keys = Features(k, settings.feature_map, settings.normalize_key).y
    return Writes(rule, keys, v, beta, decay, unit(u)[0] if settings.update_penalty else None, strength)
