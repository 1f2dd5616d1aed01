"""Models that come with the package, by name. Wherever a command or function takes a model's folder, a name will do."""

import os
from pathlib import Path

MODELS = ("tiny",)
_BOX = Path(__file__).parent


def model_folder(model: str | os.PathLike[str]) -> Path:
    """The folder of a model in the box, such as "tiny". Anything else is taken as a path and returned unchanged.

    A file or folder of that name in the working directory comes first, as with transformers' `from_pretrained`.
    """
    path = Path(model)
    return _BOX / path if str(path) in MODELS and not path.exists() else path


def names_hint(path: Path) -> str:
    """What an error for a missing folder adds where a name may have been meant."""
    return f" (by name there is: {', '.join(MODELS)})" if len(path.parts) == 1 else ""
