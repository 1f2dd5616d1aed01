"""The models: the shared block (`varla.backbone.block`) with RMS norms and SwiGLU, on transformers' base classes.

`VarlaModel` handles batches (padding, packed sequences) once for all layers. The layers know the mechanisms.
`VarlaForCausalLM` adds the head, the loss and what `generate` needs.
"""

import math
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import GenerationMixin, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from varla.backbone.block import Block, ScaledEmbedding, SwiGLU
from varla.layers import LayerState, ModelState, build
from varla.layers.norm import RMSNorm
from varla.models.cache import VarlaCache, signature, tokens_seen
from varla.models.checks import (
    IGNORED,
    check_embeds,
    check_ids,
    check_kept,
    check_labels,
    check_prompt,
    check_vocabulary,
)
from varla.models.configuration import VarlaConfig
from varla.models.layout import Layout, find_layout


class VarlaBlock(GradientCheckpointingLayer, Block):  # type: ignore[misc]
    """The shared block, with RMS norms and SwiGLU, and with gradient checkpointing."""

    FEED_FORWARD = ("mlp", "mlp_norm")

    def __init__(self, config: VarlaConfig, mechanism: str):
        """One mixer and one feed-forward network."""
        super().__init__(
            build(mechanism, **config.layer_options(mechanism)),
            SwiGLU(config.hidden_size, config.intermediate_size),
            lambda: RMSNorm(config.hidden_size, config.rms_norm_eps),
        )
        last: Any
        for last in (self.mixer.out, self.mlp.down_proj):  # type: ignore[union-attr]
            last.ends_branch = True  # see _init_weights


class VarlaPreTrainedModel(PreTrainedModel):  # type: ignore[misc]
    """What both models share: how weights are initialised and loaded."""

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
        drawn at 0.02 would let almost nothing through.
        """
        if getattr(module, "ends_branch", False):
            init.normal_(
                module.weight, 0.0, self.config.initializer_range / math.sqrt(2 * self.config.num_hidden_layers)
            )
        elif isinstance(module, nn.Conv1d):
            init.uniform_(module.weight, -(bound := 1 / math.sqrt(module.kernel_size[0])), bound)
            if module.bias is not None:
                init.zeros_(module.bias)
        else:
            super()._init_weights(module)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *model_args: Any, **kwargs: Any) -> Any:
        """As in transformers, but unreadable, misshapen, missing and unexpected weights are errors.

        Transformers only logs a report of the last three, or raises an error that refers to that report.
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
        if missing := sorted(info["missing_keys"]):
            raise ValueError(
                f"{where} does not hold all weights of this {cls.__name__}: {len(missing)} are missing, {missing[0]!r} "
                "among them. Is it a checkpoint of another model?"
            )
        if others := sorted(info["unexpected_keys"]):
            raise ValueError(
                f"{where} does not fit its configuration: it holds {len(others)} weights that this {cls.__name__} has "
                f"not, {others[0]!r} among them. Is config.json another model's?"
            )
        return (model, info) if wants_info else model


class VarlaModel(VarlaPreTrainedModel):
    """Embedding, blocks, final norm: tokens to hidden states."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\."]  # noqa: RUF012 - of a VarlaForCausalLM

    def __init__(self, config: VarlaConfig):
        """A model with fresh weights."""
        super().__init__(config)
        multiplier = config.embedding_multiplier
        multiplier = math.sqrt(config.hidden_size) if multiplier is None else multiplier
        self.embed_tokens = ScaledEmbedding(config.vocab_size, config.hidden_size, multiplier)
        self.layers = nn.ModuleList(VarlaBlock(config, name) for name in config.layer_mechanisms)
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, wide=True)
        self.signature = signature(config)
        self.gradient_checkpointing = False
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: VarlaCache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        cu_seqlens: Tensor | None = None,
    ) -> Any:
        """Hidden states of a batch: BaseModelOutputWithPast, or a tuple with return_dict=False.

        Args:
            input_ids: [B, T] integers below vocab_size.
            attention_mask: [B, T], or [B, past + T] with a cache: 0 for tokens that are padding. They are not read,
                wherever they stand; their hidden states are 0.
            position_ids: [B, T] or [1, T]. Without a cache, a 0 within a row begins another sequence (packed training).
                Otherwise they are ignored: positions are counted from the tokens read.
            past_key_values: the state after earlier tokens. It is updated, unless use_cache is False.
            inputs_embeds: [B, T, hidden_size] in place of input_ids.
            use_cache: return a cache. None: config.use_cache, and False in training.
            output_hidden_states: also return the outputs of the embedding and of every block, [B, T, hidden_size] each;
                the last is after the final norm.
            output_attentions: False: there are no attention weights to return.
            cu_seqlens: [N + 1] offsets that pack N sequences into B = 1. The cache then has N rows.
        """
        if output_attentions:
            raise ValueError("output_attentions must be False: a recurrent layer has no attention weights")
        if getattr(self, "_is_replica", False):
            raise ValueError(
                "nn.DataParallel can neither split packed sequences nor join caches: use DistributedDataParallel, by "
                "torchrun --nproc-per-node N (Trainer then does), or one GPU, by CUDA_VISIBLE_DEVICES=0"
            )
        x = self._embed(input_ids, inputs_embeds)
        cache = past_key_values
        past = tokens_seen(cache)
        layout = find_layout(x.shape[:2], x.device, attention_mask, position_ids, cu_seqlens, past)
        if use_cache is None:
            use_cache = cache is not None or (self.config.use_cache and not self.training)
        if cache is None and use_cache:
            cache = VarlaCache(self.config)
        wanted = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        x, hidden = self._blocks(x, layout, cache, use_cache, bool(wanted))
        output = BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=cache if use_cache else None,
            hidden_states=hidden if wanted else None,
        )
        return output.to_tuple() if return_dict is False else output

    def _blocks(
        self, x: Tensor, layout: Layout | None, cache: VarlaCache | None, update: bool, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """(last hidden state, and with `keep` all of them) of embeddings x [B, T, hidden_size]."""
        B, T = x.shape[:2]
        before = None
        if cache is not None:
            before = cache.read(self.signature, B if layout is None else layout.rows)
            self._check_checkpointing(before)
        hidden = [x] if keep else []
        cu_seqlens = None
        if layout is not None:
            x, cu_seqlens = layout.pack(x), layout.cu_seqlens
        after: list[LayerState] = []
        for i, block in enumerate(self.layers):
            if keep and i > 0:
                hidden.append(x if layout is None else layout.unpack(x))
            x, state = block(x, None if before is None else before.layers[i], cu_seqlens)
            if update:
                after.append(state)
        x = self.norm(x)
        x = x if layout is None else layout.unpack(x)
        if cache is not None and update:
            cache.write(after, T if layout is None else layout.longest)
        return x, (*hidden, x)

    def _check_checkpointing(self, state: ModelState | None) -> None:
        """Refuse reentrant checkpointing with a state that needs gradients: it tracks tensor arguments only."""
        how = getattr(getattr(self, "_gradient_checkpointing_func", None), "keywords", {})
        if state is None or not (self.gradient_checkpointing and self.training and how.get("use_reentrant")):
            return
        if any(x.requires_grad for x in state.tensors().values()):
            raise ValueError(
                "reentrant gradient checkpointing would lose the gradients that flow through past_key_values: "
                'use gradient_checkpointing_enable({"use_reentrant": False}), or detach() the cache'
            )

    def _embed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """[B, T, hidden_size] of token ids or embeddings, whichever is given."""
        if input_ids is not None and inputs_embeds is None:
            check_ids(input_ids)
            check_vocabulary("input_ids", input_ids, self.embed_tokens.num_embeddings)
            return self.embed_tokens(input_ids)
        if inputs_embeds is None or input_ids is not None:
            raise ValueError("give either input_ids or inputs_embeds")
        check_embeds(inputs_embeds, self.embed_tokens.weight)
        return inputs_embeds

    def state_size(self, T: int) -> int:
        """Bytes of one sequence's state after T tokens, in float32."""
        return sum(block.mixer.state_size(T) for block in self.layers)  # type: ignore[union-attr, operator]


class VarlaForCausalLM(VarlaPreTrainedModel, GenerationMixin):  # type: ignore[misc]
    """A language model: `VarlaModel` and a head, tied to the embedding or not."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True  # Trainer: forward takes num_items_in_batch

    def __init__(self, config: VarlaConfig):
        """A model with fresh weights."""
        super().__init__(config)
        self.model = VarlaModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: VarlaCache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        return_dict: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Logits [B, T, vocab_size], and the loss if there are labels: CausalLMOutputWithPast, or a tuple.

        Args beyond those of `VarlaModel.forward`:
            labels: [B, T], the tokens themselves: they are shifted here. Not predicted are labels of -100, padding and
                the first token of a packed sequence.
            logits_to_keep: compute logits of this many last positions only (0: all), or of these positions.
            num_items_in_batch: divide the summed loss by it; None: the mean over all predicted tokens.
        """
        if labels is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError("the loss needs all logits: give labels or logits_to_keep, not both")
        check_kept(logits_to_keep)
        past = tokens_seen(past_key_values)  # now, because the call below adds to it
        found = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            return_dict=True,
            cu_seqlens=cu_seqlens,
        )
        hidden = found.last_hidden_state
        if isinstance(logits_to_keep, Tensor):
            hidden = hidden[:, logits_to_keep]
        elif logits_to_keep:
            hidden = hidden[:, -logits_to_keep:]
        logits = self.lm_head(hidden)
        loss = None
        if labels is not None:
            layout = find_layout(logits.shape[:2], logits.device, attention_mask, position_ids, cu_seqlens, past)
            loss = self._loss(logits, labels, layout, num_items_in_batch)
        output = CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=found.past_key_values, hidden_states=found.hidden_states
        )
        return output.to_tuple() if return_dict is False else output

    def _loss(self, logits: Tensor, labels: Tensor, layout: Layout | None, count: Tensor | int | None) -> Tensor:
        """Cross entropy of logits [B, T, V] with labels [B, T], shifted by one."""
        check_labels(labels, *logits.shape[:2])
        wanted = pad(labels[:, 1:].long(), (0, 1), value=IGNORED)  # a small type may not hold it
        if layout is not None:
            wanted = wanted.masked_fill(~layout.predicts(labels.device), IGNORED)
        check_vocabulary("labels", wanted, logits.shape[-1], f" or {IGNORED} (not predicted)")
        return self.loss_function(
            logits=logits,
            labels=labels,
            vocab_size=logits.shape[-1],
            shift_labels=wanted.contiguous(),
            num_items_in_batch=count,
        )

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
        return super().generate(inputs, *args, **kwargs)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """As in transformers, but without a mask after the prompt: nothing is padded then, and a mask costs time."""
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
        return inputs

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
        kind = generation_config.cache_implementation
        if kind not in (None, "dynamic"):
            raise ValueError(f"cache_implementation must be None: a Varla model has its own cache, got {kind!r}")
        cache = model_kwargs.get("past_key_values")
        tokens_seen(cache)  # refuses caches of other kinds
        if cache is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = VarlaCache(self.config)
            return
        super()._prepare_cache_for_generation(generation_config, model_kwargs, *args, **kwargs)
