"""The training loop, on Hugging Face Accelerate: CPU, one GPU, or several by `accelerate launch` or `torchrun`."""

import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from varla import tasks
from varla.backbone import Backbone, backbone_config
from varla.layers.options import SHORT_NAMES, renamed
from varla.runs import environment, processes
from varla.runs.folder import RunError
from varla.runs.metrics import eval_metric, is_eval
from varla.runs.outcomes import DIVERGED, FAILED, FINISHED, INTERRUPTED, RUNNING, Diverged, Interrupted, Stop
from varla.runs.reporting import WANDB, check_wandb, report_names
from varla.tasks import IGNORE
from varla.training import checkpoint
from varla.training.config import RunConfig
from varla.training.optimizer import adamw, cosine, parameter_groups
from varla.training.progress import Progress
from varla.training.reports import Report, open_reports
from varla.training.run import Run
from varla.training.update import AsyncUpdate, CheckedUpdate, Update


def build_task(config: RunConfig) -> Any:
    """The run's task."""
    settings = dict(config.task)
    if "name" not in settings:
        raise ValueError(f"task.name is missing (allowed: {', '.join(tasks.names())})")
    return tasks.make(settings.pop("name"), **settings)


def build_model(config: RunConfig) -> Backbone:
    """The run's model, initialised from its seed, with the vocabulary and the positions that the task needs."""
    task = build_task(config)
    longest = max(each.seq_len for each in (task, *task.evaluations().values()))
    sizes = {"vocab_size": task.vocab_size, "max_len": longest, **renamed(config.model, SHORT_NAMES)}
    made = backbone_config(config.preset, config.mechanism, layer=config.layer, **sizes)
    for name, least in (("vocab_size", task.vocab_size), ("max_len", longest if made.positions == "learned" else 1)):
        if getattr(made, name) < least:
            raise ValueError(f"model.{name} must be at least {least} for this task, got {getattr(made, name)}")
    return Backbone(made, seed=config.seed)


def trained_model(folder: Path) -> tuple[Backbone, Path]:
    """The model of a run with the weights of its newest checkpoint, and that checkpoint."""
    run = Run(folder)
    found = checkpoint.latest(run.checkpoints)
    if found is None:
        raise RunError(f"{folder} holds no checkpoint yet: resume it with `varla train --resume {folder}`")
    model = build_model(run.config())
    checkpoint.load_weights(found, model)
    return model, found


def score(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(right answers, scored positions) of logits [B, T, V] against labels [B, T], -100 where nothing is scored."""
    scored = labels != IGNORE
    return ((logits.argmax(-1) == labels) & scored).sum(), scored.sum()


@torch.no_grad()
def evaluate(model: nn.Module, config: RunConfig, device: torch.device) -> dict[str, float]:
    """Accuracy on each of the task's evaluations, always on the same batches; training sees none of them."""
    was_training = model.training
    model.eval()
    found = {}
    for name, task in build_task(config).evaluations().items():
        generator = torch.Generator(device).manual_seed(config.seed + 1_000_003)
        right = total = torch.zeros((), dtype=torch.int64, device=device)
        for _ in range(config.train.eval_batches):
            inputs, labels = task.batch(config.train.eval_batch_size, generator=generator)
            hits, scored = score(model(inputs)[0], labels)
            right, total = right + hits, total + scored
        found[eval_metric(name)] = float(right / total)
    model.train(was_training)
    return found


def train(
    config: RunConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    progress: Progress | None = None,
    device: str | None = None,
) -> dict[str, Any]:
    """Train to the end and return the record. `resume` continues from the newest checkpoint, to the same numbers.

    Raises Diverged, Interrupted (after saving), or ValueError for settings and folders that cannot be used.
    """
    return _Trainer(config, Run(Path(folder)), progress or Progress(), device).run(resume)


class _Trainer:
    def __init__(self, config: RunConfig, run: Run, progress: Progress, device: str | None):
        from accelerate import Accelerator
        from accelerate.state import AcceleratorState

        if device not in (None, "cpu", "cuda"):
            raise ValueError(f"device must be 'cpu', 'cuda' or None (a GPU if there is one), got {device!r}")
        if device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device='cuda' was asked for, but PyTorch finds no CUDA device here")
        if WANDB in report_names("train.report_to", config.train.report_to):
            check_wandb("train.report_to")
        AcceleratorState._reset_state(True)  # an earlier run in this process may have had another precision
        self.config, self.run_, self.progress = config, run, progress
        precision = "bf16" if config.train.precision == "bf16" else "no"
        cpu = device == "cpu" or processes.on_cpu()
        processes.check_started(cpu=cpu)
        self.accelerator = Accelerator(mixed_precision=precision, cpu=cpu)
        processes.check_together(self.accelerator.num_processes)
        self.device = self.accelerator.device
        if config.train.batch_size % self.accelerator.num_processes:
            count = self.accelerator.num_processes
            raise ValueError(
                f"train.batch_size must be a multiple of the {count} processes, got {config.train.batch_size}"
            )
        self.task = build_task(config)
        self.model = build_model(config)
        one_gpu = self.device.type == "cuda" and self.accelerator.num_processes == 1
        self.graph = config.train.graph and one_gpu
        t = config.train
        self.optimizer = adamw(
            parameter_groups(self.model.to(self.device)), betas=(t.beta1, t.beta2), eps=t.adam_eps,
            weight_decay=t.weight_decay, capture_on=self.device if self.graph else None,
        )  # fmt: skip
        self.generator = torch.Generator(self.device).manual_seed(config.seed)
        self.seconds = 0.0
        self.since, self.busy = 0, 0.0  # steps since something was logged, and the seconds they took

    @property
    def main(self) -> bool:
        return bool(self.accelerator.is_main_process)

    def run(self, resume: bool) -> dict[str, Any]:
        with self.run_.lock(self.main):
            if self.main:
                self._claim(resume)
            self.accelerator.wait_for_everyone()  # nobody looks at the folder before the first process holds it
            record = self._train(self._load(resume))
        self._part()
        return record

    def _train(self, done: int) -> dict[str, Any]:
        """From step `done` to the end."""
        update = self._update()
        title = f"{self.config.mechanism} on {self.config.task['name']}"
        reports: list[Report] = []
        finished = False
        try:
            with Stop() as stop:
                if self.main:
                    self.progress.begin(title, done, self.config.train.steps)
                    reports += open_reports(self.config, self.run_.folder, done)
                for step in range(done, self.config.train.steps):
                    entry = self._step(update, step)
                    if self.main:
                        if entry:
                            self.run_.log(entry)
                            for report in reports:
                                report.log(entry)
                        self.progress.step(step + 1, entry)
                    last = step + 1 == self.config.train.steps
                    stopping = self._agree(stop.wanted)
                    if stopping:
                        update.check()  # a diverged run must not be saved as one to resume
                    if (step + 1) % self.config.train.checkpoint_every == 0 or last or stopping:
                        self._save(step + 1)
                    if stopping and not last:
                        self._record(INTERRUPTED, step + 1)
                        how = f"varla train --resume {self.run_.folder}"
                        raise Interrupted(f"stopped and saved after step {step + 1}; resume with: {how}")
            finished = True
            return self._record(FINISHED, self.config.train.steps)
        except Interrupted:
            raise
        except Exception as error:
            self._record(DIVERGED if isinstance(error, Diverged) else FAILED, None, message=str(error))
            raise
        finally:
            for report in reports:
                report.close(finished)
            if self.main:
                self.progress.end()

    def _update(self) -> CheckedUpdate | AsyncUpdate:
        t = self.config.train
        rate = cosine(t.lr, t.steps, warmup=round(t.warmup * t.steps))
        if self.graph:
            return AsyncUpdate(self._objective(self.model), self.model, self.optimizer, rate, t.clip, self.generator)
        model, self.wrapped_optimizer = self.accelerator.prepare(self.model, self.optimizer)
        backward = self.accelerator.backward
        return CheckedUpdate(self._objective(model), model, self.wrapped_optimizer, rate, t.clip, backward)

    def _objective(self, model: nn.Module) -> Callable[[], tuple[Tensor, ...]]:
        """(loss, right answers, scored positions) of this process's share of the next batch."""
        share = slice(self.accelerator.process_index, None, self.accelerator.num_processes)

        def objective() -> tuple[Tensor, ...]:
            inputs, labels = self.task.batch(self.config.train.batch_size, generator=self.generator)
            inputs, labels = inputs[share], labels[share]
            with self.accelerator.autocast():
                logits, _ = model(inputs)
            loss = cross_entropy(logits.float().flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
            return loss, *score(logits, labels)

        return objective

    def _part(self) -> None:
        """Leave the process group together: exiting without this sometimes aborts after the work is done."""
        if self.accelerator.num_processes > 1:
            self.accelerator.free_memory()
            del self.model, self.optimizer, self.wrapped_optimizer
            gc.collect()
            self.accelerator.wait_for_everyone()
            torch.distributed.destroy_process_group()

    def _claim(self, resume: bool) -> None:
        """Begin a run in the folder, or check that it holds this very run. The lock is held."""
        if resume:
            self.run_.reopen(self.config)
            self.run_.check_room(self._room(len(checkpoint.all_in(self.run_.checkpoints))))
        else:
            self.run_.begin(self.config, needed_bytes=self._room(there=0))

    def _room(self, there: int) -> int:
        """Bytes for weights and two moments of the missing checkpoints: two are kept while a third is written."""
        return (3 - min(there, 2)) * 3 * sum(p.nbytes for p in self.model.parameters())

    def _load(self, resume: bool) -> int:
        """Restore the newest checkpoint, if any; returns the steps already done."""
        done = 0
        if resume and (found := checkpoint.latest(self.run_.checkpoints)) is not None:
            done, self.seconds = checkpoint.load(found, self.model, self.optimizer, self.generator)
            if done > self.config.train.steps:
                raise ValueError(f"{found} is of step {done}, but the run has {self.config.train.steps} steps")
        if self.main:
            self.run_.truncate_metrics(done)
            self._record(RUNNING, done)
        self.accelerator.wait_for_everyone()
        return done

    def _agree(self, wanted: bool) -> bool:
        """Whether any process was asked to stop. All must stop together, or the others wait for it forever."""
        if self.accelerator.num_processes == 1:
            return wanted
        votes = self.accelerator.reduce(torch.tensor(int(wanted), device=self.device), "sum")
        return int(votes) > 0

    def _step(self, update: CheckedUpdate | AsyncUpdate, step: int) -> dict[str, Any] | None:
        """One step; returns what to log after it."""
        started = time.perf_counter()
        t = self.config.train
        last = step + 1 == t.steps
        logging = (step + 1) % t.log_every == 0 or step == 0 or last
        evaluating = (step + 1) % t.eval_every == 0 or last
        saving = (step + 1) % t.checkpoint_every == 0
        made = update(step, look=logging or evaluating or saving)
        self.since += 1
        entry: dict[str, Any] = {}
        if logging:
            mean, hits, scored = self._over_processes(made)
            entry = {"loss": float(mean), "accuracy": float(hits / scored), "grad norm": float(made.norm)}
            entry["lr"] = float(self.optimizer.param_groups[0]["lr"])
            tokens = t.batch_size * self.task.seq_len * self.since
            entry["tokens/s"] = tokens / (self.busy + time.perf_counter() - started)
            self.since, self.busy = 0, 0.0
        else:
            self.busy += time.perf_counter() - started
        if evaluating:
            with self.accelerator.autocast():
                entry.update(evaluate(self.model, self.config, self.device))
        self.seconds += time.perf_counter() - started
        return {"step": step + 1, **entry} if entry else None

    def _over_processes(self, made: Update) -> tuple[Tensor, Tensor, Tensor]:
        """Mean loss, right answers and scored positions of the whole batch, over all processes."""
        loss, (hits, scored) = made.loss, made.others
        if self.accelerator.num_processes == 1:
            return loss, hits, scored
        sums = self.accelerator.reduce(torch.stack([loss * scored, hits, scored]), "sum")
        return sums[0] / sums[2], sums[1], sums[2]

    def _save(self, step: int) -> None:
        if self.main:
            checkpoint.save(
                self.run_.checkpoints, step, self.model, self.optimizer, self.generator, seconds=self.seconds
            )
        self.accelerator.wait_for_everyone()

    def _record(self, status: str, step: int | None, message: str | None = None) -> dict[str, Any]:
        evaluations = [entry for entry in self.run_.metrics() if any(map(is_eval, entry))]
        final = evaluations[-1] if evaluations else {}
        record = {
            "status": status,
            "message": message,
            "steps": step,
            "config": self.config.to_dict(),
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "state bytes": self.model.state_size(self.task.seq_len),
            "seconds": self.seconds,
            "device": str(self.device),
            "processes": self.accelerator.num_processes,
            "chance": self.task.chance,
            "final": {key: value for key, value in final.items() if is_eval(key)},
            "environment": environment.describe(),
        }
        if self.main:
            self.run_.write_record(record)
        return record
