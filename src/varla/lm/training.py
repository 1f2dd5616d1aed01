"""Training a language model through Hugging Face's Trainer, into one folder that can be gone on from.

config.yaml, tokens/ (the text, tokenised once), checkpoint-N/ and logs/ (the Trainer's), model/ (the result, with its
tokenizer), record.json.
"""

import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_utils import get_last_checkpoint

from varla.lm.arguments import check_arguments
from varla.lm.checkpoints import check_checkpoint, state_of, steps_of
from varla.lm.folder import load_model
from varla.lm.packing import Rows, collate
from varla.lm.scoring import scores
from varla.lm.settings import LMSettings, from_dict
from varla.lm.text import Corpus, corpus, load_tokenizer, text_key
from varla.models import VarlaForCausalLM, preset
from varla.outcomes import FINISHED
from varla.training import environment
from varla.training.config import load
from varla.training.loop import Interrupted
from varla.training.run import Run, RunError, write_aside
from varla.training.stop import Stop
from varla.training.update import Diverged

DEFAULTS: Mapping[str, Any] = {
    "max_steps": 1000,
    "per_device_train_batch_size": 8,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 0.1,  # a share
    "weight_decay": 0.1,
    "adam_beta2": 0.95,
    "logging_steps": 10,
    "save_steps": 500,
    "save_total_limit": 2,
    "report_to": "tensorboard",
    "logging_nan_inf_filter": False,  # else a loss that is not finite is logged as if nothing were wrong
}


def read_settings(folder: Path) -> LMSettings:
    """The settings that a run's folder was made with."""
    file = folder / "config.yaml"
    if not file.is_file():
        raise RunError(f"{folder} holds no run: there is no config.yaml in it")
    return from_dict(load(file))


def train(settings: LMSettings, folder: str | Path, *, resume: bool = False) -> dict[str, Any]:
    """Train to the end, score at every context length, and return the record. `resume` goes on from a checkpoint.

    Raises Diverged, Interrupted (after saving), or ValueError for settings, text and folders that cannot be used.
    """
    folder = Path(folder)
    main = int(os.environ.get("RANK", "0")) == 0
    arguments = training_arguments(settings, folder)
    _check(settings, folder, resume)
    if resume and Run(folder).record().get("status") == FINISHED:
        return Run(folder).record()  # the Trainer would make one step more
    tokenizer = load_tokenizer(settings.tokenizer)
    set_seed(settings.seed)
    model = build_model(settings.model, len(tokenizer), tokenizer, settings.data.context)
    parameters, use_cache = sum(p.numel() for p in model.parameters()), model.config.use_cache
    arguments.distributed_state.wait_for_everyone()  # all have looked at the folder as it was
    with arguments.main_process_first(desc="text"):
        train_text, validation = load_texts(settings, tokenizer, folder / "tokens")
        if main:
            _claim(settings, tokenizer, folder, resume)
    with Stop() as stop, Run(folder).lock(main), logs_in(folder / "logs"):
        last = get_last_checkpoint(str(folder)) if resume else None
        if last is not None:
            check_checkpoint(last, optimizer=not (arguments.save_only_model or arguments.deepspeed))
        over = last is not None and steps_of(last) >= arguments.max_steps > 0
        if over:  # and cut short after that: again, it would make one step more
            model = VarlaForCausalLM.from_pretrained(last)
        with _given_back(folder, main and not resume):
            trainer = Trainer(
                model,
                arguments,
                train_dataset=Rows(train_text, settings.data.context),
                eval_dataset=None if validation is None else Rows(validation, settings.data.context),
                data_collator=collate,
                processing_class=tokenizer,
                callbacks=[Watch(stop)],
            )
            if arguments.fsdp and not trainer.is_fsdp_enabled:
                raise ValueError("train.fsdp needs GPUs: nothing would be sharded here")
        metrics: Mapping[str, float] = {} if over else trainer.train(resume_from_checkpoint=last).metrics
        steps = arguments.max_steps if over else trainer.state.global_step
        if not math.isfinite(loss := metrics.get("train_loss", 0.0)):  # of steps that were not logged
            raise Diverged(f"diverged by step {steps}: the mean loss is {loss}")
        if stop.wanted and steps < trainer.state.max_steps:
            raise Interrupted(f"stopped and saved after step {steps}; go on with: varla train-lm --resume {folder}")
        found = {} if validation is None else evaluate(trainer.model, validation, settings)
        trainer.model.config.use_cache = use_cache  # the Trainer switches it off, for the training
        trainer.save_model(str(folder / "model"))
        speed = metrics.get("train_samples_per_second")
        history = state_of(last)["log_history"] if over and last else trainer.state.log_history
        record = {
            "status": FINISHED,
            "steps": steps,
            "settings": settings.to_dict(),
            "parameters": parameters,
            "train tokens": len(train_text),
            "loss": next((entry["loss"] for entry in reversed(history) if "loss" in entry), None),
            "tokens/s": None if speed is None else speed * settings.data.context,
            "scores": found,
            "environment": environment.describe(),
        }
        if main:
            tokenizer.save_pretrained(folder / "model")
            Run(folder).write_record(record)
    return record


@contextmanager
def _given_back(folder: Path, ours: bool) -> Iterator[None]:
    """Where the Trainer cannot begin, the folder that became `ours` is free again, but for its tokens."""
    try:
        yield
    except Exception as error:
        if ours:
            for name in ("config.yaml", "texts.json", ".lock"):
                (folder / name).unlink(missing_ok=True)
        if isinstance(error, (ValueError, TypeError, OSError)):
            raise
        raise ValueError(f"the Trainer cannot begin: {error}") from error  # no such package, no network


@contextmanager
def logs_in(folder: Path) -> Iterator[None]:
    """Meanwhile transformers writes TensorBoard's files there; it takes the place from the environment alone."""
    name = "TENSORBOARD_LOGGING_DIR"
    before = os.environ.get(name)
    os.environ[name] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def training_arguments(settings: LMSettings, folder: Path) -> TrainingArguments:
    """The Trainer's settings: ours, under what is given. Its own errors are passed on."""
    check_arguments(settings.train)
    given = {**DEFAULTS, "disable_tqdm": not sys.stderr.isatty(), **settings.train}
    if "num_train_epochs" in settings.train and "max_steps" not in settings.train:
        del given["max_steps"]
    made = TrainingArguments(
        output_dir=str(folder), seed=settings.seed, data_seed=settings.seed, remove_unused_columns=False,
        label_names=["labels"], **given,
    )  # fmt: skip
    if made.n_gpu > 1:
        raise ValueError(
            f"there are {made.n_gpu} GPUs and one process, and nn.DataParallel, which the Trainer would take, cannot "
            f"split packed rows: torchrun --nproc-per-node {made.n_gpu} -m varla.cli train-lm ... for all of them, or "
            "CUDA_VISIBLE_DEVICES=0 for one"
        )
    return made


def load_texts(settings: LMSettings, tokenizer: Any, folder: Path) -> tuple[Corpus, Corpus | None]:
    """(training text, validation text or None), tokenised; checked to have a row each."""
    data = settings.data
    whole = corpus(data.train, tokenizer, folder)
    if not isinstance(data.validation, float):
        found: tuple[Corpus, Corpus | None] = whole, corpus(data.validation, tokenizer, folder)
    elif data.validation > 0:
        found = whole.split(data.validation)
    else:
        found = whole, None
    for name, each in zip(("data.train", "data.validation"), found, strict=True):
        if each is not None and len(each) < data.context:
            share = isinstance(data.validation, float) and name == "data.validation"
            hint = f": it is {data.validation:g} of {len(whole)}; 0.0 for none" if share else ""
            raise ValueError(
                f"{name} has {len(each)} tokens, not enough for one row of {data.context} (data.context){hint}"
            )
    return found


def build_model(model: Mapping[str, Any], words: int, tokenizer: Any, context: int) -> VarlaForCausalLM:
    """A new model of a preset with the tokenizer's vocabulary, or the one in a folder if its vocabulary is as large.

    Its max_position_embeddings say what it was trained for: rows of `context` tokens, unless `model` says otherwise; a
    model from a folder keeps its own where they are more.
    """
    if "folder" in model:
        found = load_model(model["folder"])
        if found.config.vocab_size < words:
            raise ValueError(
                f"{model['folder']} has embeddings for {found.config.vocab_size} tokens, the tokenizer has {words}"
            )
        found.config.max_position_embeddings = max(found.config.max_position_embeddings, context)
        return found
    changes = {key: value for key, value in model.items() if key != "preset"}
    ids = {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    ours = {"vocab_size": words, "max_position_embeddings": context, **ids}
    return VarlaForCausalLM(preset(model["preset"], **{**ours, **changes}))


def evaluate(model: Any, validation: Corpus, settings: LMSettings) -> dict[str, dict[str, float]]:
    """Bits per byte and perplexity of the validation text, by context length."""
    tokens = validation.tokens[: settings.evaluate.tokens]
    found = scores(model, tokens, settings.evaluate.contexts, validation.bytes_per_token, validation.starts)
    return {
        str(context): {"bits per byte": each.bits_per_byte, "perplexity": each.perplexity, "tokens": each.tokens}
        for context, each in found.items()
    }


class Watch(TrainerCallback):  # type: ignore[misc]
    """Stops between steps when asked to, saved; and at a loss that is not finite."""

    def __init__(self, stop: Stop):
        """`stop` catches the signals."""
        self.stop = stop

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Save and end, if asked to. One process of several is enough."""
        wanted = torch.tensor(int(self.stop.wanted), device=args.device)
        if args.world_size > 1:
            torch.distributed.all_reduce(wanted)
        if wanted:
            self.stop.wanted = control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Look at what was logged."""
        for name in ("loss", "grad_norm"):
            value = (logs or {}).get(name)
            if value is not None and not math.isfinite(value):
                raise Diverged(f"diverged by step {state.global_step}: {name} is {value}")


def _check(settings: LMSettings, folder: Path, resume: bool) -> None:
    """Check that the folder is free, or this run's."""
    if resume:
        before, now = read_settings(folder).to_dict(), settings.to_dict()
        if before != now:
            keys = ", ".join(sorted(key for key in now if now[key] != before.get(key)))
            raise RunError(f"{folder} was made with other settings of {keys}: it cannot be resumed with these")
        return
    if (folder / "config.yaml").exists():
        raise RunError(f"{folder} already holds a run: resume it, or choose another folder")
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder} is a file: choose another folder")
    others = sorted(path.name for path in folder.glob("*") if path.name != "tokens") if folder.is_dir() else []
    if others:
        raise RunError(f"{folder} holds {others[0]!r}, which is no run's: choose an empty folder, or a new one")


def _claim(settings: LMSettings, tokenizer: Any, folder: Path, resume: bool) -> None:
    """Write down what the run is made of, now that nothing is known to be wrong; or check that the text is the same."""
    sources = (settings.data.train, settings.data.validation)
    texts = [text_key(source, tokenizer) for source in sources if not isinstance(source, float)]
    file = folder / "texts.json"
    if resume:
        try:
            before = json.loads(file.read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"{file} is missing or damaged: it is not known what text the run was begun with") from error
        if before != texts:
            raise RunError(f"the text is not that which {folder} was begun with: it cannot be gone on with")
        return
    write_aside(file, json.dumps(texts))
    write_aside(folder / "config.yaml", str(yaml.safe_dump(settings.to_dict(), sort_keys=False)))
