"""The machine and the software that a result depends on: processor, devices, versions, commit."""

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import varla

_PACKAGES = ("numpy", "safetensors", "accelerate", "transformers", "triton")


def describe() -> dict[str, Any]:
    """Machine and software, as a record keeps them."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "varla": varla.__version__,
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **versions(),
    }


def versions() -> dict[str, str]:
    """Installed versions of the packages that results may depend on."""
    found = {}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def commit() -> str | None:
    """The commit of the source tree, marked "-dirty" if it has changes; None outside a checkout.

    The variable VARLA_COMMIT, if set, names it instead.
    """
    if named := os.environ.get("VARLA_COMMIT"):
        return named
    head = _git("rev-parse", "HEAD")
    return None if head is None else head + ("-dirty" if _git("status", "--porcelain") else "")


def processor() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    folder = Path(varla.__file__).parent
    try:
        result = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=folder, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
