"""The models: the shared block (`varla.backbone.block`) with RMS norms and SwiGLU, on transformers' base classes.

`VarlaModel` handles batches (padding, packed sequences) once for all layers. The layers know the mechanisms.
`VarlaForCausalLM` adds the head and the loss; what `generate` needs is in `varla.models.generation`.
"""

import math
from typing import Any

from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast

from varla.backbone.block import Block, ScaledEmbedding, SwiGLU
from varla.layers import LayerState, ModelState, build
from varla.layers.norm import RMSNorm
from varla.models.cache import VarlaCache, signature, tokens_seen
from varla.models.checks import TWICE, check_embeds, check_ids, check_kept, check_vocabulary, check_wanted
from varla.models.configuration import VarlaConfig
from varla.models.generation import VarlaGenerationMixin
from varla.models.layout import AttentionRecorder, ModelLayout, check_split, find_layout, shifted
from varla.models.pretrained import VarlaPreTrainedModel
from varla.ops.split import Packing, Split


class VarlaBlock(GradientCheckpointingLayer, Block):  # type: ignore[misc]
    """The shared block, with RMS norms and SwiGLU, and with gradient checkpointing."""

    FEED_FORWARD = ("mlp", "mlp_norm")

    def __init__(self, config: VarlaConfig, mechanism: str):
        super().__init__(
            build(mechanism, **config.layer_options(mechanism)),
            SwiGLU(config.hidden_size, config.intermediate_size),
            lambda: RMSNorm(config.hidden_size, config.rms_norm_eps),
        )
        last: Any
        for last in (self.mixer.out, self.mlp.down_proj):  # type: ignore[union-attr]
            last.ends_branch = True  # see _init_weights


class VarlaModel(VarlaPreTrainedModel):
    """Embedding, blocks, final norm: tokens to hidden states."""

    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.", r"^score\."]  # noqa: RUF012 - heads

    def __init__(self, config: VarlaConfig):
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
        cu_seqlens: Packing = None,
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
            output_attentions: also return the weights of the softmax layers, [B, heads, T, past + T] each; recurrent
                layers have none. A cache does not hold padding: its tokens come first among the `past`.
            cu_seqlens: [N + 1] offsets that pack N sequences into B = 1. The cache then has N rows. Or a
                `varla.ops.Split`: the batch holds this rank's tokens, and there is no cache.
        """
        if getattr(self, "_is_replica", False):
            raise ValueError(
                "nn.DataParallel can neither split packed sequences nor join caches: use DistributedDataParallel, by "
                "torchrun --nproc-per-node N (Trainer then does), or one GPU, by CUDA_VISIBLE_DEVICES=0"
            )
        x = self._embed(input_ids, inputs_embeds)
        cache = past_key_values
        past = tokens_seen(cache)
        split = cu_seqlens if isinstance(cu_seqlens, Split) else None
        if split is not None:
            check_split(attention_mask, position_ids, cache, use_cache)
            use_cache = False
        layout = find_layout(x.shape[:2], x.device, attention_mask, position_ids, cu_seqlens, past)
        if use_cache is None:
            use_cache = cache is not None or (self.config.use_cache and not self.training)
        if cache is None and use_cache:
            cache = VarlaCache(self.config, self.signature)
        output_hidden_states = (
            self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        )
        output_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        hidden: list[Tensor] | None = [] if output_hidden_states else None
        recorder = AttentionRecorder(layout, past) if output_attentions else None
        x = self._blocks(x, layout, split, cache, use_cache, hidden, recorder)
        output = BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=cache if use_cache else None,
            hidden_states=None if hidden is None else (*hidden, x),
            attentions=None if recorder is None else tuple(recorder.kept),
        )
        return output.to_tuple() if return_dict is False else output

    def _blocks(
        self,
        x: Tensor,
        layout: ModelLayout | None,
        split: Split | None,
        cache: VarlaCache | None,
        update: bool,
        hidden: list[Tensor] | None,
        recorder: AttentionRecorder | None,
    ) -> Tensor:
        """The last hidden state of embeddings x [B, T, hidden_size]. The others are appended to `hidden`."""
        B, T = x.shape[:2]
        before = None
        if cache is not None:
            before = cache.read(self.signature, B if layout is None else layout.rows)
            self._check_checkpointing(before)
        if hidden is not None:
            hidden.append(x)
        cu_seqlens: Packing = split
        if layout is not None:
            x, cu_seqlens = layout.pack(x), layout.cu_seqlens
        after: list[LayerState] = []
        for i, block in enumerate(self.layers):
            if hidden is not None and i > 0:
                hidden.append(x if layout is None else layout.unpack(x))
                x = x if layout is None else layout.pack(hidden[-1])  # so that gradients reach what is returned
            x, state = block(x, None if before is None else before.layers[i], cu_seqlens, recorder)
            if update:
                after.append(state)
        x = self.norm(x)
        if cache is not None and update:
            last = x[:, -1].clone() if layout is None else layout.last(x, cache.last)
            cache.write(after, T if layout is None else layout.longest, last)
        return x if layout is None else layout.unpack(x)

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


class VarlaForCausalLM(VarlaPreTrainedModel, VarlaGenerationMixin):
    """A language model: `VarlaModel` and a head, tied to the embedding or not."""

    AUTO_CLASS = "AutoModelForCausalLM"
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012
    accepts_loss_kwargs = True  # Trainer: forward takes num_items_in_batch

    def __init__(self, config: VarlaConfig):
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
        cu_seqlens: Packing = None,
        num_items_in_batch: Tensor | int | None = None,
        targets: Tensor | None = None,
    ) -> Any:
        """Logits [B, T, vocab_size], and the loss if there are labels: CausalLMOutputWithPast, or a tuple.

        Padding is not read: its logits are those of the last token before it, zeros if there is none. The other
        arguments are those of `VarlaModel.forward`.

        Args:
            labels: [B, T], the tokens themselves: they are shifted here. Not predicted are labels of -100, padding and
                the first token of a packed sequence.
            logits_to_keep: compute logits of at most this many last positions (0: all), or of these positions.
            num_items_in_batch: divide the summed loss by it; None: the mean over all predicted tokens. Trainer counts
                labels for it: those that are not predicted must be -100.
            targets: [B, T] in place of labels: the token that each position predicts, -100 for none. Where tokens are
                spread over ranks, a rank does not have the token behind its last one.
        """
        if labels is not None and targets is not None:
            raise ValueError(TWICE)
        if labels is not None and isinstance(cu_seqlens, Split):
            raise ValueError("give targets, not labels: tokens are spread over ranks, the next may be elsewhere")
        wanted = labels if targets is None else targets
        if wanted is not None and not (isinstance(logits_to_keep, int) and logits_to_keep == 0):
            raise ValueError("the loss needs all logits: give labels or logits_to_keep, not both")
        kept = check_kept(logits_to_keep, input_ids if inputs_embeds is None else inputs_embeds)
        past = tokens_seen(past_key_values)  # now, because the call below changes both
        before = None if past_key_values is None else past_key_values.last
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
        hidden, layout = found.last_hidden_state, None
        if attention_mask is not None or labels is not None:
            layout = find_layout(hidden.shape[:2], hidden.device, attention_mask, position_ids, cu_seqlens, past)
        logits = self.lm_head(hidden[:, kept] if layout is None else layout.repeat_at_padding(hidden, kept, before))
        if labels is not None:
            wanted = shifted(labels, logits.shape[:2], layout, num_items_in_batch)
        loss = None if wanted is None else self._loss(logits, wanted, num_items_in_batch)
        output = CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )
        return output.to_tuple() if return_dict is False else output

    def _loss(self, logits: Tensor, wanted: Tensor, count: Tensor | int | None) -> Tensor:
        """Cross entropy of logits [B, T, V] with what they predict, [B, T]."""
        check_wanted(wanted, *logits.shape)
        return self.loss_function(
            logits=logits,
            labels=wanted,
            vocab_size=logits.shape[-1],
            shift_labels=wanted.long().contiguous(),
            num_items_in_batch=count,
        )
