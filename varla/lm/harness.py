"""EleutherAI's lm-evaluation-harness on a saved model. An extra: pip install "varla[eval]"."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import varla.models  # noqa: F401 - so that transformers' Auto classes know the family


def evaluate(
    folder: str | Path,
    tasks: Sequence[str],
    *,
    include: str | Path | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    device: str = "cpu",
) -> dict[str, dict[str, Any]]:
    """The harness's numbers by task. `include`: a folder with tasks of your own; `limit`: examples of each task.

    Raises ValueError for a folder without a model and for tasks that nobody knows.
    """
    try:
        from lm_eval import simple_evaluate
        from lm_eval.models.huggingface import HFLM
        from lm_eval.tasks import TaskManager
    except ModuleNotFoundError as error:
        raise ImportError(
            f'the harness is not installed ({error}): pip install "varla[eval]"', name="lm_eval"
        ) from error

    if not (Path(folder) / "config.json").is_file():
        raise ValueError(f"{folder} holds no model: there is no config.json in it")
    if not tasks:
        raise ValueError("at least one task is needed, such as lambada_openai")
    manager = TaskManager(include_path=None if include is None else str(include))
    unknown = [task for task in tasks if not manager.match_tasks([task])]
    if unknown:
        raise ValueError(
            f"the harness knows no task {', '.join(map(repr, unknown))}; --include names a folder of your own"
        )
    model = HFLM(pretrained=str(folder), backend="causal", batch_size=batch_size, device=device)
    found = simple_evaluate(model=model, tasks=list(tasks), task_manager=manager, limit=limit, bootstrap_iters=0)
    results: dict[str, dict[str, Any]] = found["results"]
    return results
