"""`VarlaForSequenceClassification`: one score a class for a whole text, read at its last token."""

from typing import Any

from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutputWithPast

from varla.models.cache import VarlaCache, tokens_seen
from varla.models.checks import check_class_labels
from varla.models.configuration import VarlaConfig
from varla.models.layout import find_layout
from varla.models.modeling import VarlaModel
from varla.models.pretrained import VarlaPreTrainedModel


class VarlaForSequenceClassification(VarlaPreTrainedModel):
    """`VarlaModel` and a linear head, `score`, on the last token of each sequence that is no padding.

    Transformers' generic head finds that token by `pad_token_id` alone. Here the mask comes first: padding that the
    mask names is not read, and an end-of-text token that is also the padding is.
    """

    AUTO_CLASS = "AutoModelForSequenceClassification"
    NEW_WEIGHTS = ("score.weight",)

    def __init__(self, config: VarlaConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = VarlaModel(config)
        self.score = nn.Linear(config.hidden_size, config.num_labels, bias=False)
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
        cu_seqlens: Tensor | None = None,
    ) -> Any:
        """Scores [N, num_labels] of N sequences, and the loss if there are labels: a SequenceClassifierOutputWithPast.

        N is the batch size, or the number of packed sequences. A sequence without any token has scores of 0. The other
        arguments are those of `VarlaModel.forward`.

        Args:
            attention_mask: the last token of a row is the last one that the mask keeps. Without a mask it is the last
                one that is not config.pad_token_id.
            labels: single_label_classification: classes [N], from 0 to num_labels - 1, or -100 to leave a sequence
                out. multi_label_classification: 0 or 1 [N, num_labels]. regression: numbers [N, num_labels], or [N]
                for one. If config.problem_type is None, the first labels decide, as in transformers.
        """
        past = tokens_seen(past_key_values)  # now, because the call below changes both
        before = None if past_key_values is None else past_key_values.last
        self._check_padding(input_ids if inputs_embeds is None else inputs_embeds)
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
        hidden, pad = found.last_hidden_state, self.config.pad_token_id
        layout = find_layout(hidden.shape[:2], hidden.device, attention_mask, position_ids, cu_seqlens, past)
        if layout is None and attention_mask is None and input_ids is not None and pad is not None:
            layout = find_layout(hidden.shape[:2], hidden.device, input_ids != pad, None, None, past)
        logits = self.score(hidden[:, -1] if layout is None else layout.last(layout.pack(hidden), before))
        loss = None
        if labels is not None:
            labels = check_class_labels(labels, logits, self.config)
            loss = self.loss_function(logits=logits, labels=labels, pooled_logits=logits, config=self.config)
        output = SequenceClassifierOutputWithPast(
            loss=loss,
            logits=logits,
            past_key_values=found.past_key_values,
            hidden_states=found.hidden_states,
            attentions=found.attentions,
        )
        return output.to_tuple() if return_dict is False else output

    def _check_padding(self, inputs: Tensor | None) -> None:
        """Refuse more than one row without a padding token, as transformers does. Other checks come later."""
        if self.config.pad_token_id is None and isinstance(inputs, Tensor) and inputs.dim() > 1 and len(inputs) > 1:
            raise ValueError(
                f"config.pad_token_id is None, and the batch has {len(inputs)} rows: their last tokens cannot be told "
                "from padding. Set model.config.pad_token_id, to that of the tokenizer, or give one row at a time"
            )
