"""EleutherAI's lm-evaluation-harness on a saved model. An extra: eval."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from varla.arguments import check_count
from varla.lm.code import NEVER, code_in_tasks
from varla.lm.folder import load_folder


class _Refused(BaseException):
    """A BaseException, because the harness catches every Exception and continues without the metric."""


def evaluate(
    folder: str | Path,
    tasks: Sequence[str],
    *,
    include: str | Path | None = None,
    limit: int | None = None,
    context: int | None = None,
    batch_size: int = 8,
    device: str = "cpu",
) -> dict[str, dict[str, Any]]:
    """The harness's results by task. `include`: a folder with tasks of your own; `limit`: examples of each task.

    `context`: the most tokens in one call (None: the model's max_position_embeddings). Tasks that score whole texts
    cut them into windows of that length and predict each token once, the first one from the tokenizer's
    beginning-of-text token or, without one, its end-of-text token. Longer prompts lose their beginning.

    Tasks of your own are data: a folder that holds Python for them (`!function`) is refused, their templates run in a
    sandbox, and metrics that would be downloaded as Python (`hf_evaluate`) are refused in all tasks.

    Raises ValueError for a folder without a model, for unknown tasks and for code.
    """
    try:
        import lm_eval
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ModuleNotFoundError as error:
        raise ImportError(
            f'the harness is not installed ({error}): pip install "varla[eval]", or ".[eval]" in a clone',
            name="lm_eval",
        ) from error

    check_count("context", context, none_means="the model's max_position_embeddings")
    if not tasks:
        raise ValueError("at least one task is needed, such as lambada_openai")
    if include is not None and (code := code_in_tasks(Path(include), Path(lm_eval.__file__).parent)):
        raise ValueError(f"{include} {code}")
    manager = None
    if include is not None:  # reading the harness's own thousands of tasks takes ten seconds
        manager = TaskManager(include_path=str(include), include_defaults=False)
    if manager is None or not set(tasks) <= set(manager.all_subtasks):
        manager = TaskManager(include_path=None if include is None else str(include))
    unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        raise ValueError(
            f"the harness knows no task {', '.join(map(repr, unknown))}; --include names a folder of your own"
        )
    model, tokenizer = load_folder(folder, device)
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise ValueError(f"{folder}: its tokenizer has neither a bos_token nor an eos_token to begin a text with")
    reader = HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", max_length=context, batch_size=batch_size)
    with _contained():
        found = simple_evaluate(model=reader, tasks=list(tasks), task_manager=manager, limit=limit, bootstrap_iters=0)
    results: dict[str, dict[str, Any]] = found["results"]
    return results


@contextmanager
def _contained() -> Iterator[None]:
    """Templates of tasks cannot leave their sandbox, and metrics are not loaded as Python. Bad data is a ValueError."""
    import evaluate as metrics
    from datasets.exceptions import DatasetsError
    from jinja2 import TemplateError
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    sandbox = SandboxedEnvironment(undefined=utils.env.undefined, keep_trailing_newline=True)
    sandbox.filters.update(utils.env.filters)
    before = utils.env, metrics.load
    utils.env, metrics.load = sandbox, _refuse
    try:
        yield
    except _Refused as error:
        raise ValueError(str(error)) from None
    except TemplateError as error:
        raise ValueError(f"a template of the tasks cannot be used: {error}") from error
    except DatasetsError as error:
        raise ValueError(f"the data of the tasks cannot be loaded: {error.__cause__ or error}") from error
    finally:
        utils.env, metrics.load = before


def _refuse(name: str, *_: Any, **__: Any) -> None:
    raise _Refused(f"metric {name!r} is not one of the harness's own: it would be loaded as Python code, {NEVER}")
