"""What `generate` accepts: the same as for a tiny Llama, except for other kinds of caches."""

import contextlib
import io
import warnings

import pytest
import torch
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessorList,
    MaxLengthCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    WatermarkingConfig,
    set_seed,
)

from varla.lm.text import load_tokenizer
from varla.models import VarlaConfig, VarlaForCausalLM

TOKENIZER = load_tokenizer("bytes")
SIZES = {
    "vocab_size": len(TOKENIZER), "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
    "intermediate_size": 8, "bos_token_id": 1, "eos_token_id": 256, "pad_token_id": 0,
}  # fmt: skip
IDS = TOKENIZER(["Hello there", "Hello where"], return_tensors="pt")["input_ids"]
SAMPLE = {"do_sample": True}
DICT = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
STATES = {"output_hidden_states": True, "output_attentions": True}
OPTIONS = [
    SAMPLE,
    {**SAMPLE, "temperature": 0.5, "top_k": 5, "top_p": 0.9},
    {**SAMPLE, "min_p": 0.1},
    {**SAMPLE, "typical_p": 0.5},
    {**SAMPLE, "epsilon_cutoff": 0.001},
    {**SAMPLE, "eta_cutoff": 0.001},
    {"repetition_penalty": 1.2},
    {"no_repeat_ngram_size": 2},
    {"encoder_repetition_penalty": 1.2},
    {"bad_words_ids": [[3], [4, 5]]},
    {"force_words_ids": [[3]], "num_beams": 2},
    {"suppress_tokens": [3], "begin_suppress_tokens": [4]},
    {"forced_bos_token_id": 3},
    {"forced_eos_token_id": 3},
    {"sequence_bias": [[[3], 2.0]]},
    {"renormalize_logits": True, "remove_invalid_values": True},
    {"exponential_decay_length_penalty": (2, 1.1)},
    {"guidance_scale": 1.5},
    {
        "guidance_scale": 1.5,
        "negative_prompt_ids": IDS[:, :4],
        "negative_prompt_attention_mask": torch.ones(2, 4, dtype=torch.int64),
    },
    {"num_beams": 3, "length_penalty": 0.5, "early_stopping": True, "num_return_sequences": 2},
    {"num_beams": 3, **SAMPLE},
    {"num_beams": 2, **DICT, **STATES},
    {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
    {"penalty_alpha": 0.5, "top_k": 3},
    {"dola_layers": "low"},
    {"max_time": 60.0},
    {"min_new_tokens": 2},
    {"stop_strings": ["\x00never"], "tokenizer": TOKENIZER},
    {"token_healing": True, "tokenizer": TOKENIZER},
    {"tokenizer": TOKENIZER, "assistant_tokenizer": TOKENIZER},
    {"watermarking_config": WatermarkingConfig()},
    {**DICT, **STATES},
    {"use_cache": False, **DICT, **STATES},
    {"cache_implementation": "dynamic"},
    {"prefill_chunk_size": 4},
    {"logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.5)])},
    {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(13)])},
    {"prefix_allowed_tokens_fn": lambda row, ids: [3, 4, 5]},
    {"custom_generate": lambda model, input_ids, **others: input_ids},
    {"generation_config": GenerationConfig(max_new_tokens=2)},
    {"logits_to_keep": 1},
    {"position_ids": torch.arange(11)[None].expand(2, -1)},
    {"output_router_logits": True},
    {"eos_token_id": [5, 6]},
    {"head_mask": None, "token_type_ids": None},
    {"max_new_token": 3},
    {"label": IDS},
]


@pytest.fixture(scope="module")
def models():
    torch.manual_seed(0)
    ours = VarlaForCausalLM(VarlaConfig(**SIZES, mechanisms=["vla", "softmax"]))
    return ours.eval(), LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=3)).eval()


def outcome(net, options):
    """What came out: shapes, or the names of what was returned, or the error."""
    set_seed(1)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            found = net.generate(IDS, attention_mask=torch.ones_like(IDS), **{"max_new_tokens": 4, **options})
    except (ValueError, TypeError) as error:
        return type(error), str(error)
    return list(found.shape) if isinstance(found, torch.Tensor) else sorted(found.keys())


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options))
def test_it_is_as_for_llama(models, options):
    ours, theirs = (outcome(net, options) for net in models)
    assert ours == theirs


def test_stop_strings_stop(models):
    net = models[0]
    set_seed(3)
    whole = net.generate(IDS[:1], max_new_tokens=20, do_sample=True)
    letter = next(int(i) for i in whole[0, 12:] if 33 <= i < 127)
    set_seed(3)
    found = net.generate(IDS[:1], max_new_tokens=20, do_sample=True, stop_strings=[chr(letter)], tokenizer=TOKENIZER)
    assert int(found[0, -1]) == letter
    assert torch.equal(found, whole[:, : found.shape[1]])


@pytest.mark.parametrize("kind", ["static", "offloaded", "quantized", "paged"])
def test_other_caches_are_refused(models, kind):
    with pytest.raises(ValueError, match=f"cache_implementation must be None: a Varla model has its own .*{kind!r}"):
        models[0].generate(IDS, cache_implementation=kind)


def test_continuous_batching_is_refused(models):
    with pytest.raises(ValueError, match="continuous batching shares pages of keys and values"):
        models[0].generate_batch(IDS.tolist())
