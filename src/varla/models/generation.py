"""What `generate` needs beyond transformers' own: checks of the prompt, and the family's cache."""

import inspect
from typing import Any

from torch import Tensor
from transformers import GenerationMixin
from transformers.utils import TransformersKwargs

from varla.models.cache import VarlaCache, tokens_seen
from varla.models.checks import check_embeds, check_ids, check_prompt, check_rows

# For stop strings and assistants, and settings of other families that transformers does not refuse.
_FOR_OTHERS = {"tokenizer", "assistant_tokenizer", *TransformersKwargs.__optional_keys__}


class VarlaGenerationMixin(GenerationMixin):  # type: ignore[misc]
    """`generate` for `VarlaForCausalLM`."""

    def generate(self, inputs: Tensor | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in transformers, but a prompt that cannot be continued is an error that says why."""
        prompt = kwargs.get("input_ids") if inputs is None else inputs
        embeds, mask = kwargs.get("inputs_embeds"), kwargs.get("attention_mask")
        if embeds is not None:
            check_embeds(embeds, self.model.embed_tokens.weight)
            check_prompt(embeds, mask)
        elif isinstance(prompt, Tensor) and prompt.dim() == 2 and prompt.shape[1] == 0:
            raise ValueError(
                "the prompt is empty: it must hold at least one token a row, the beginning-of-text if none"
            )
        elif prompt is not None:
            check_ids(prompt)
            check_prompt(prompt, mask)
        _check_cache_kind(kwargs.get("cache_implementation"))
        return super().generate(inputs, *args, **kwargs)

    def init_continuous_batching(self, *_: Any, **__: Any) -> Any:
        """Refused: `generate_batch` and transformers' server would return the prompts alone."""
        _check_cache_kind("paged")

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As in transformers, but drops arguments that `generate` passes to every model and `forward` does not take.

        After the prompt there is no mask: nothing is padded then, and a mask costs time.
        """
        cache = kwargs.get("past_key_values")
        seen = tokens_seen(cache)
        if seen and next_sequence_length is not None and next_sequence_length < 1:
            raise ValueError(
                f"past_key_values has seen {seen} tokens a row: input_ids must hold these and at least one more, got "
                f"{seen + next_sequence_length}; or the new ones alone, with an attention_mask for old and new"
            )
        inputs: dict[str, Any] = super().prepare_inputs_for_generation(
            input_ids, next_sequence_length, inputs_embeds=inputs_embeds, **kwargs
        )
        if cache is not None and next_sequence_length == 1 and not kwargs.get("is_first_iteration", False):
            inputs.pop("attention_mask", None)
        taken = inspect.signature(type(self).forward).parameters
        # Transformers refuses names that no model knows, unless their value is None.
        others = {name for name, value in inputs.items() if value is None} | _FOR_OTHERS
        return {name: value for name, value in inputs.items() if name in taken or name not in others}

    def _prepare_attention_mask_for_generation(self, *args: Any, **kwargs: Any) -> Tensor:
        """As in transformers, which infers the mask from the pad token; but a row of nothing else is an error."""
        mask: Tensor = super()._prepare_attention_mask_for_generation(*args, **kwargs)
        check_rows(mask)
        return mask

    def _prepare_generated_length(self, generation_config: Any, has_default_max_length: bool, **given: Any) -> Any:
        """As in transformers, but without a given length it does not stop at max_position_embeddings."""
        usual = generation_config.max_length
        found = super()._prepare_generated_length(
            generation_config=generation_config, has_default_max_length=has_default_max_length, **given
        )
        if has_default_max_length and found.max_new_tokens is None:
            found.max_length = usual + given["input_ids_length"]
        return found

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Make a VarlaCache where transformers would make one of its own kinds."""
        _check_cache_kind(generation_config.cache_implementation)
        cache = model_kwargs.get("past_key_values")
        tokens_seen(cache)  # refuses caches of other kinds
        if cache is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = VarlaCache(self.config)
            return
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)


def _check_cache_kind(kind: str | None) -> None:
    if kind not in (None, "dynamic"):
        hint = ", and continuous batching shares pages of keys and values" if kind == "paged" else ""
        raise ValueError(f"cache_implementation must be None: a Varla model has its own cache{hint}; got {kind!r}")
