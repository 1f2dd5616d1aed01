"""Training a language model through Hugging Face's Trainer, into one folder that can be resumed.

The folder: config.yaml and begun.json (the settings), tokens/ (the text, tokenized once), checkpoint-N/ and logs/ (the
Trainer's), model/ (the result, with its tokenizer), record.json; wandb.json and wandb/ if it reports there.
"""

import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

from varla.layers.gates import undecayed
from varla.lm import checkpoints
from varla.lm.folder import load_model
from varla.lm.packing import Rows, collate
from varla.lm.scoring import scores
from varla.lm.settings import LMSettings, check_train, from_dict
from varla.lm.text import Corpus, corpus, load_tokenizer, text_key
from varla.models import VarlaForCausalLM, preset
from varla.runs import environment, processes
from varla.runs.folder import RunError, RunFolder
from varla.runs.outcomes import FINISHED, Diverged, Interrupted, Stop
from varla.runs.reporting import WANDB, WANDB_FILE, check_wandb, wandb_run
from varla.runs.writing import move_into_place, naming

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
    "logging_nan_inf_filter": False,  # the filter would hide a loss that is not finite
}


def read_settings(folder: Path) -> LMSettings:
    """The settings that a run's folder was made with."""
    return from_dict(RunFolder(folder).read_config())


def train(settings: LMSettings, folder: str | Path, *, resume: bool = False) -> dict[str, Any]:
    """Train to the end, score at every context length, and return the record. `resume` continues from a checkpoint.

    Raises Diverged, Interrupted (after saving), or ValueError for settings, text and folders that cannot be used.
    """
    run = LMFolder(Path(folder))
    main = int(os.environ.get("RANK", "0")) == 0
    arguments = training_arguments(settings, run.folder)
    with run.lock(main):
        if main:
            _check(settings, run, resume)
        arguments.distributed_state.wait_for_everyone()  # nobody looks at the folder before the first process holds it
        if resume and (record := run.record()).get("status") == FINISHED:
            return record  # the Trainer would take one step more
        return _train(settings, run, arguments, main, resume)


def _train(
    settings: LMSettings, run: RunFolder, arguments: TrainingArguments, main: bool, resume: bool
) -> dict[str, Any]:
    folder = run.folder
    tokenizer = load_tokenizer(settings.tokenizer)
    set_seed(settings.seed)
    model = build_model(settings.model, len(tokenizer), tokenizer, settings.data.context)
    parameters, use_cache = sum(p.numel() for p in model.parameters()), model.config.use_cache
    with arguments.main_process_first(desc="text"):
        train_text, validation = load_texts(settings, tokenizer, folder / "tokens")
        if main:
            _claim(settings, tokenizer, run, resume)
    with Stop() as stop, logs_in(folder / "logs"), ExitStack() as reports:
        needed = not (arguments.save_only_model or arguments.deepspeed)
        last = checkpoints.newest(folder, optimizer=needed) if resume else None
        arguments.distributed_state.wait_for_everyone()
        if resume and main:
            checkpoints.remove_after(folder, last)
        begun = 0 if last is None else checkpoints.state_of(last)["global_step"]
        trained = last is not None and begun >= arguments.max_steps > 0
        if trained:  # it was cut short afterwards, and the Trainer would take one step more
            model = load_model(str(last))
        with _released(run, main and not resume):
            if WANDB in arguments.report_to and main and not trained:  # the Trainer logs to the run that it finds
                reports.enter_context(wandb_run(folder, settings.to_dict(), arguments.run_name))
            trainer = SavingTrainer(
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
        metrics: Mapping[str, float] = {}
        if not trained:
            with naming(folder / "logs"):
                metrics = trainer.train(resume_from_checkpoint=None if last is None else str(last)).metrics
        steps = arguments.max_steps if trained else trainer.state.global_step
        if not math.isfinite(loss := metrics.get("train_loss", 0.0)):  # `Watch` sees only the steps that are logged
            raise Diverged(f"diverged by step {steps}: the mean loss is {loss}")
        if stop.wanted and steps < trainer.state.max_steps:
            raise Interrupted(f"stopped and saved after step {steps}; resume with: varla train-lm --resume {folder}")
        found = {} if validation is None else evaluate(trainer.model, validation, settings)
        trainer.model.config.use_cache = use_cache  # the Trainer switches it off while it trains
        _save_model(trainer, tokenizer, folder / "model", main)
        speed = _rows_per_second(metrics, steps - begun)
        history = checkpoints.state_of(last)["log_history"] if trained and last else trainer.state.log_history
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
            run.write_record(record)
    return record


class LMFolder(RunFolder):
    """The files of a language model's run."""

    LEFTOVERS = (*RunFolder.LEFTOVERS, ".model.*", ".checkpoint-*", "checkpoint-*/.checksums.json.*", "tokens/.*")


def _rows_per_second(metrics: Mapping[str, float], steps: int) -> float | None:
    """Rows a second over the `steps` of this process; None if nothing was trained.

    After a resumption, the speeds of transformers 5.17 count the steps of earlier processes too. Their ratio is right.
    """
    if not metrics.get("train_steps_per_second"):
        return None
    rows = round(metrics["train_samples_per_second"] / metrics["train_steps_per_second"])
    return rows * steps / metrics["train_runtime"]


class SavingTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose checkpoints are sealed when they are complete, and whose errors name what was not saved.

    It applies no weight decay to the rates of gates. Transformers already excludes biases and norms by their names.
    """

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """See Trainer."""
        kept = undecayed(model)
        return [name for name in super().get_decay_parameter_names(model) if name not in kept]

    def _save_checkpoint(self, *args: Any, **options: Any) -> None:
        target = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        with checkpoints.saving(target):
            super()._save_checkpoint(*args, **options)
            self.args.distributed_state.wait_for_everyone()  # each process writes files of its own
            if self.args.should_save:
                checkpoints.seal(target)


def _save_model(trainer: Trainer, tokenizer: Any, target: Path, main: bool) -> None:
    """Write the model and its tokenizer aside, then rename the folder: it is whole or absent."""
    aside = target.with_name(f".{target.name}.aside")
    with checkpoints.saving(target):
        trainer.save_model(str(aside))  # all processes: each may hold a part of the weights
        if main:
            tokenizer.save_pretrained(aside)
            move_into_place(aside, target)


@contextmanager
def _released(run: RunFolder, ours: bool) -> Iterator[None]:
    """If the Trainer cannot begin, release the folder that this process claimed; only its tokens stay."""
    try:
        yield
    except Exception as error:
        if ours:
            run.unclaim()
        if isinstance(error, (ValueError, TypeError, OSError)):
            raise
        raise ValueError(f"the Trainer cannot begin: {error}") from error  # a missing package, no network


@contextmanager
def logs_in(folder: Path) -> Iterator[None]:
    """Have transformers write TensorBoard's files to `folder`, which it reads from the environment alone."""
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
    """The Trainer's arguments: our defaults, then the given ones. Its own errors pass through."""
    check_train(settings.train)
    ours = {"disable_tqdm": not sys.stderr.isatty(), "use_cpu": processes.on_cpu()}
    given = {**DEFAULTS, **ours, **settings.train}
    processes.check_started(cpu=bool(given["use_cpu"]))
    if "num_train_epochs" in settings.train and "max_steps" not in settings.train:
        del given["max_steps"]
    made = TrainingArguments(
        output_dir=str(folder), seed=settings.seed, data_seed=settings.seed, remove_unused_columns=False,
        label_names=["labels"], **given,
    )  # fmt: skip
    if made.n_gpu > 1:
        raise ValueError(
            f"there are {made.n_gpu} GPUs and one process, and nn.DataParallel, which the Trainer would use, cannot "
            f"split packed rows: torchrun --nproc-per-node {made.n_gpu} -m varla train-lm ... for all of them, or "
            "CUDA_VISIBLE_DEVICES=0 for one"
        )
    processes.check_together(made.world_size)
    if WANDB in made.report_to:
        check_wandb("train.report_to")
    return made


def load_texts(settings: LMSettings, tokenizer: Any, folder: Path) -> tuple[Corpus, Corpus | None]:
    """(training text, validation text or None), tokenized. Each must fill at least one row."""
    data = settings.data
    whole = corpus(data.train, tokenizer, folder)
    if not isinstance(data.validation, float):
        found: tuple[Corpus, Corpus | None] = whole, corpus(data.validation, tokenizer, folder)
    elif data.validation > 0:
        # At least one row: a hundredth of a short book is less. At most half, so that the error names both parts.
        found = whole.split(max(data.validation, min(0.5, data.context / len(whole))))
    else:
        found = whole, None
    for name, each in zip(("data.train", "data.validation"), found, strict=True):
        if each is not None and len(each) < data.context:
            hint = ", or data.validation=0.0 for none" if isinstance(data.validation, float) and data.validation else ""
            raise ValueError(
                f"{name} has {len(each)} tokens, not enough for one row of {data.context}: set a smaller "
                f"data.context{hint}"
            )
    return found


def build_model(model: Mapping[str, Any], words: int, tokenizer: Any, context: int) -> VarlaForCausalLM:
    """A new model of a preset with the tokenizer's vocabulary, or the model in a folder if its vocabulary is as large.

    max_position_embeddings is the length the model is trained for: `context`, unless `model` sets it. A model from a
    folder keeps its own if that is larger.
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
    """Bits per byte and perplexity of the validation text, for each context length."""
    tokens = validation.tokens[: settings.evaluate.tokens]
    found = scores(model, tokens, settings.evaluate.contexts, validation.bytes_per_token, validation.starts)
    return {
        str(context): {"bits per byte": each.bits_per_byte, "perplexity": each.perplexity, "tokens": each.tokens}
        for context, each in found.items()
    }


class Watch(TrainerCallback):  # type: ignore[misc]
    """Stops the Trainer: after a step, saved, when a signal asks for it; at once if the loss is not finite."""

    def __init__(self, stop: Stop):
        self.stop = stop

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """Save and stop if any of the processes was asked to."""
        wanted = torch.tensor(int(self.stop.wanted), device=args.device)
        if args.world_size > 1:
            torch.distributed.all_reduce(wanted)
        if wanted:
            self.stop.wanted = control.should_save = control.should_training_stop = True
        return control

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any) -> None:
        """Raise Diverged if a logged loss or gradient norm is not finite."""
        for name in ("loss", "grad_norm"):
            value = (logs or {}).get(name)
            if value is not None and not math.isfinite(value):
                raise Diverged(f"diverged by step {state.global_step}: {name} is {value}")


def _check(settings: LMSettings, run: RunFolder, resume: bool) -> None:
    """Check that the folder is free or, to resume, holds this very run. The lock is held."""
    if resume:
        run.check_same(read_settings(run.folder).to_dict(), settings.to_dict())
        return
    run.check_unused()
    # A start that was killed or refused may have left them.
    ours = ("tokens", ".lock", run.begun_file.name, WANDB_FILE, "wandb")
    others = sorted(path.name for path in run.folder.iterdir() if path.name not in ours)
    if others:
        raise RunError(f"{run.folder} holds {others[0]!r}, which is no run's: choose an empty folder, or a new one")


def _claim(settings: LMSettings, tokenizer: Any, run: RunFolder, resume: bool) -> None:
    """Write the settings and the identity of the text; or, to resume, check that the text is the same."""
    sources = (settings.data.train, settings.data.validation)
    texts = [text_key(source, tokenizer) for source in sources if not isinstance(source, float)]
    if not resume:
        run.claim(settings.to_dict(), texts=texts)
        return
    before = run.begun().get("texts")
    if before is None:
        raise RunError(f"{run.begun_file} is missing or damaged: the run cannot be matched with its text")
    if before != texts:
        raise RunError(f"the text has changed since {run.folder} was begun: it cannot be resumed")
