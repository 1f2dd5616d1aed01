"""Checks of a model's arguments, before anything is computed. Each error names the argument and what was given."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from varla.arguments import check_count
from varla.layers.layout import read_mask

IGNORED = -100  # the label of a token that is not predicted
TWICE = "give labels or targets, not both: targets are labels that are shifted already"


def check_tensor(name: str, value: object, what: str) -> None:
    """Raise a TypeError unless this is a tensor; `what` describes its values and shape."""
    if isinstance(value, Tensor):
        return
    hint = "; give what it holds by name: model(**inputs)" if isinstance(value, Mapping) else ""
    raise TypeError(f"{name} must be a tensor of {what}, got {type(value).__name__}{hint}")


def check_ids(input_ids: Tensor) -> None:
    """Raise unless these are token ids, [B, T]."""
    check_tensor("input_ids", input_ids, "integers [B, T]")
    right = input_ids.dtype in (torch.int32, torch.int64)
    if not right or input_ids.dim() != 2 or input_ids.shape[1] == 0:
        hint = "; input_ids[None] is a batch of one" if right and input_ids.dim() == 1 else ""
        raise ValueError(
            "input_ids must be integers (int32 or int64) of shape [B, T >= 1], got "
            f"{input_ids.dtype} {list(input_ids.shape)}{hint}"
        )


def check_vocabulary(name: str, ids: Tensor, size: int, also: str = "") -> None:
    """Raise a ValueError unless ids are from 0 to size - 1. `also` (words for the message) allows IGNORED, too."""
    _check_below(name, ids, size, "vocab_size", also, "; was the text encoded by another tokenizer?")


def _check_below(name: str, ids: Tensor, size: int, limit: str, also: str, hint: str = "") -> None:
    """Raise a ValueError unless ids are from 0 to size - 1, the value of `limit`, or IGNORED where `also` allows it.

    Only on the CPU: on a GPU the check would force a device sync. Not while compiling: the values are not known.
    """
    if ids.device.type != "cpu" or not ids.numel() or torch.compiler.is_compiling():
        return
    low, high = (int(each) for each in (ids.masked_fill(ids == IGNORED, 0) if also else ids).aminmax())
    if low < 0 or high >= size:
        raise ValueError(
            f"{name} must be from 0 to {size - 1} ({limit} = {size}){also}, got {low if low < 0 else high}{hint}"
        )


def check_embeds(inputs_embeds: Tensor, weight: Tensor) -> None:
    """Raise unless these are embeddings [B, T, hidden_size] for a model whose own are weight [V, hidden_size]."""
    width = weight.shape[1]
    check_tensor("inputs_embeds", inputs_embeds, f"floats [B, T, hidden_size = {width}]")
    if inputs_embeds.dim() != 3 or inputs_embeds.shape[2] != width or inputs_embeds.shape[1] == 0:
        raise ValueError(
            f"inputs_embeds must have shape [B, T >= 1, hidden_size = {width}], got {list(inputs_embeds.shape)}"
        )
    wider = torch.promote_types(inputs_embeds.dtype, weight.dtype) != weight.dtype
    if not inputs_embeds.is_floating_point() or (wider and not torch.is_autocast_enabled(weight.device.type)):
        raise ValueError(f"inputs_embeds must be {weight.dtype}, as the weights are, got {inputs_embeds.dtype}")


def check_labels(labels: Tensor, B: int, T: int) -> None:
    """Raise unless these are integers [B, T]."""
    check_tensor("labels", labels, f"integers [{B}, {T}]")
    if labels.shape != (B, T):
        raise ValueError(f"labels must have shape [{B}, {T}], got {list(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, got {labels.dtype}")


def check_wanted(wanted: Tensor, B: int, T: int, size: int) -> None:
    """Raise unless these are integers [B, T] from 0 to size - 1, or IGNORED: what each position predicts."""
    check_labels(wanted, B, T)
    check_vocabulary("labels", wanted, size, f" or {IGNORED} (not predicted)")


def check_class_labels(labels: Tensor, logits: Tensor, config: Any) -> Tensor:
    """Labels of sequences for logits [N, num_labels], in the type that the loss needs. Raise unless they fit.

    config.problem_type, if it is None, is found as transformers' loss finds it.
    """
    N, classes = logits.shape
    check_tensor("labels", labels, f"classes [{N}], or of numbers [{N}, {classes}]")
    whole = not (labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool)
    problem = config.problem_type
    if problem is None:
        problem = "regression" if classes == 1 else f"{'single' if whole else 'multi'}_label_classification"
    single = problem == "single_label_classification"
    shapes = [[N], [N, 1]] if single or classes == 1 else [[N, classes]]
    if list(labels.shape) not in shapes:
        several = single and list(labels.shape) == [N, classes]
        hint = "; is each a 0 or 1? Then set config.problem_type to multi_label_classification" if several else ""
        raise ValueError(
            f"labels must have shape {' or '.join(map(str, shapes))} for {problem} with num_labels = {classes}, got "
            f"{list(labels.shape)}{hint}"
        )
    if not single:
        return labels.to(logits.dtype)
    if not whole:
        raise ValueError(f"labels must be integers, the classes, for {problem}, got {labels.dtype}")
    _check_below("labels", labels, classes, "num_labels", f" or {IGNORED} (left out)")
    return labels.long()


def check_kept(logits_to_keep: object, tokens: object) -> slice | Tensor:
    """The positions that get logits, of tokens [B, T, *]. Raise unless it is a number of last ones, or positions [N].

    On a GPU the positions' values are not checked: see `check_vocabulary`. The tokens are checked elsewhere.
    """
    if not isinstance(logits_to_keep, Tensor):
        check_count("logits_to_keep", logits_to_keep, least=0)
        return slice(-logits_to_keep if logits_to_keep else None, None)  # type: ignore[operator]
    if not isinstance(tokens, Tensor) or tokens.dim() < 2:
        return logits_to_keep
    T = tokens.shape[1]
    if logits_to_keep.dtype == torch.bool and list(logits_to_keep.shape) == [T]:
        return logits_to_keep
    if logits_to_keep.dim() != 1 or logits_to_keep.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"logits_to_keep must be a number, or integers (int32 or int64) of shape [N], or booleans of shape [{T}], "
            f"got {logits_to_keep.dtype} {list(logits_to_keep.shape)}"
        )
    if logits_to_keep.device.type == "cpu" and logits_to_keep.numel() and not torch.compiler.is_compiling():
        low, high = (int(each) for each in logits_to_keep.aminmax())
        if low < -T or high >= T:
            raise ValueError(
                f"logits_to_keep must hold positions from 0 to {T - 1}, or from {-T} to -1 counted from the end, got "
                f"{low if low < -T else high}"
            )
    return logits_to_keep


def check_rows(mask: Tensor) -> None:
    """Raise if a row of a prompt's mask [B, T] is all padding: nothing could be continued there."""
    empty = (mask == 0).all(1).nonzero()[:, 0].tolist()
    if empty:
        raise ValueError(
            f"row {empty[0]} of the prompt is all padding: it must hold at least one token, the beginning-of-text if "
            "none. Without an attention_mask, tokens that equal pad_token_id count as padding"
        )


def check_prompt(prompt: Tensor, mask: Tensor | None) -> None:
    """Raise unless `generate` can continue token ids [B, T] or embeddings [B, T, *] with their mask [B, >= T]."""
    rows, length = prompt.shape[:2]
    if rows == 0:
        raise ValueError(f"the prompt must have at least one row, got shape {list(prompt.shape)}")
    if mask is None:
        return
    check_tensor("attention_mask", mask, "shape [B, T], 1 for tokens and 0 for padding")
    if mask.dim() != 2 or mask.shape[0] != rows or mask.shape[1] < length:
        raise ValueError(f"attention_mask must have shape [{rows}, {length}], as the prompt, got {list(mask.shape)}")
    read_mask(mask)
    check_rows(mask)
