"""The machine as a bug report needs it: software, devices, disk space, environment variables, and remarks on them."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from varla.doctor.checks import WRONG
from varla.doctor.versions import Version, judge_all, ptxas_remark, ptxas_version
from varla.ops.backends import Backend, backends, triton_interpreted
from varla.runs import environment

GIB = 2**30
LITTLE = GIB  # free bytes below which a remark is made

# Environment variables that change what runs, or how. Only those that are set are reported.
VARIABLES = (
    "TRITON_INTERPRET",
    "TRITON_CACHE_DIR",
    "TRITON_PTXAS_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_HOME",
    "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "TORCH_COMPILE_DISABLE",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "HF_HUB_OFFLINE",
    "LD_PRELOAD",
    "VARLA_COMMIT",
    "VARLA_DEBUG",
)
_OFF = ("", "0", "false", "off", "no")


@dataclass(frozen=True)
class GPU:
    """One GPU."""

    device: str
    name: str
    memory: int  # bytes
    capability: tuple[int, int]
    ptxas: str | None

    def __str__(self) -> str:
        """Name, memory and compute capability."""
        return f"{self.name}, {self.memory / GIB:.0f} GiB, compute capability {'.'.join(map(str, self.capability))}"


@dataclass(frozen=True)
class Folder:
    """Free space where files are written. `free` is None if the folder cannot be asked."""

    use: str
    path: str
    free: int | None
    writable: bool


@dataclass(frozen=True)
class Machine:
    """Everything that is known before a number is computed."""

    found: dict[str, Any]  # as records keep it
    versions: list[Version]
    cuda: str | None  # what PyTorch was built for
    gpus: list[GPU]
    backends: dict[str, Backend]
    folders: list[Folder]
    variables: dict[str, str]

    @property
    def wrong(self) -> list[str]:
        """What is WRONG whatever the numbers are."""
        return [each.remark for each in self.versions if each.verdict == WRONG and each.remark]

    @property
    def remarks(self) -> list[str]:
        """What may explain a problem, and is none by itself."""
        untested = [each.remark for each in self.versions if each.verdict != WRONG and each.remark]
        known = {ptxas_remark(gpu.ptxas, gpu.capability): None for gpu in self.gpus}
        found = [*untested, *known, *_of_backends(self), *_of_variables(self.variables), *map(_of_folder, self.folders)]
        return [each for each in found if each]

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        named = {"cuda": self.cuda, "gpus": [asdict(gpu) for gpu in self.gpus], "variables": self.variables}
        return {
            **self.found,
            **named,
            "versions": [asdict(each) for each in self.versions],
            "backends": [asdict(each) for each in self.backends.values()],
            "folders": [asdict(each) for each in self.folders],
        }


def examine() -> Machine:
    """Look at this machine. Nothing is computed on it."""
    found = environment.describe()
    return Machine(
        found=found,
        versions=judge_all(found),
        cuda=torch.version.cuda,
        gpus=[_gpu(i) for i in range(torch.cuda.device_count())],
        backends=backends(),
        folders=[_folder("current folder", os.getcwd), _folder("temporary folder", tempfile.gettempdir)],
        variables={name: os.environ[name] for name in VARIABLES if name in os.environ},
    )


def _gpu(i: int) -> GPU:
    properties = torch.cuda.get_device_properties(i)
    capability = (properties.major, properties.minor)
    return GPU(f"cuda:{i}", properties.name, properties.total_memory, capability, ptxas_version(capability))


def _folder(use: str, where: Any) -> Folder:
    try:
        path = Path(where())
        return Folder(use, str(path), shutil.disk_usage(path).free, os.access(path, os.W_OK))
    except OSError as error:  # it was removed, or no folder can be written
        return Folder(use, error.strerror or str(error), None, False)


def _of_folder(folder: Folder) -> str | None:
    if folder.free is None:
        return f"the {folder.use} cannot be used: {folder.path}"
    if not folder.writable:
        return f"the {folder.use}, {folder.path}, cannot be written to"
    if folder.free < LITTLE:
        return f"the {folder.use}, {folder.path}, has only {folder.free / 2**20:,.0f} MiB left"
    return None


def _of_backends(machine: Machine) -> list[str]:
    if machine.cuda is not None and not machine.gpus:
        return [f"PyTorch is built for CUDA {machine.cuda} and finds no GPU"]
    if machine.gpus and triton_interpreted():
        return ["TRITON_INTERPRET is set: kernels run slowly on the CPU, and those of the GPU are not checked"]
    old = [f"{gpu.device} ({gpu.name})" for gpu in machine.gpus if gpu.capability < (8, 0)]
    return [f"no kernels run on {', '.join(old)}: they need compute capability 8.0 or later"] if old else []


def _of_variables(given: Mapping[str, str]) -> list[str]:
    found = []
    if given.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        found.append("CUDA_VISIBLE_DEVICES hides every GPU")
    for name in ("NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"):
        if given.get(name, "").lower() not in _OFF:
            found.append(f"{name} is set: float32 products on a GPU keep 10 bits, too few for the bound of float32")
    return found
