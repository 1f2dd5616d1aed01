"""The machine: what is reported about it, and what is remarked."""

import json
import tempfile
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import varla
from varla.doctor import machine
from varla.doctor.machine import GPU, Folder, examine
from varla.doctor.versions import Version

HOPPER = GPU("cuda:0", "NVIDIA H200", 140 * 2**30, (9, 0), "12.9")


@pytest.fixture
def here(monkeypatch):
    """This machine as it would be without variables."""
    for name in machine.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return examine()


def test_what_is_known(here, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = examine()
    assert found.found["varla"] == varla.__version__
    assert {each.package for each in found.versions} >= {"python", "torch", "triton", "transformers"}
    assert [each.path for each in found.folders] == [str(tmp_path), tempfile.gettempdir()]
    assert all(each.free and each.writable for each in found.folders)
    assert set(found.backends) == set(varla.backends())
    assert json.loads(json.dumps(found.to_dict()))["torch"] == torch.__version__
    assert not found.wrong


def test_gpus_have_memory_and_compute_capability(monkeypatch):
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=140 * 2**30, major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda i: properties)
    (gpu,) = examine().gpus
    assert gpu.device == "cuda:0"
    assert str(gpu) == "NVIDIA H200, 140 GiB, compute capability 9.0"


def test_variables_that_are_set_are_reported(here, monkeypatch):
    assert here.variables == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")
    found = examine()
    assert found.variables == {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_TF32_OVERRIDE": "1"}
    assert any("hides every GPU" in each for each in found.remarks)
    assert any("NVIDIA_TF32_OVERRIDE" in each for each in found.remarks)


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        ({"folders": [Folder("temporary folder", "/there", 2**20, True)]}, "/there, has only 1 MiB left"),
        ({"folders": [Folder("current folder", "/there", 2**40, False)]}, "/there, cannot be written to"),
        ({"folders": [Folder("current folder", "gone", None, False)]}, "current folder cannot be used: gone"),
        ({"cuda": "12.8", "gpus": []}, "built for CUDA 12.8 and finds no GPU"),
        ({"gpus": [replace(HOPPER, ptxas="12.8")]}, "ptxas 12.8"),
        ({"gpus": [replace(HOPPER, name="Tesla V100", capability=(7, 0))]}, "cuda:0 (Tesla V100)"),
        ({"versions": [Version("torch", "9.0", "", "untested", "torch 9.0 is newer")]}, "torch 9.0 is newer"),
    ],
)
def test_remarks(here, change, remark):
    clean = replace(here, cuda=None, gpus=[], versions=[], folders=[])
    assert clean.remarks == []
    changed = replace(clean, **change)
    assert remark in "\n".join(changed.remarks)
    assert len(changed.remarks) == 1
    assert changed.wrong == []


def test_an_interpreter_beside_a_gpu_is_remarked(here, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET is set" in "\n".join(replace(here, gpus=[HOPPER]).remarks)


def test_an_unsupported_version_is_wrong(here):
    old = Version("torch", "1.0", "2.11 or later", "WRONG", "torch 1.0 is not supported")
    assert replace(here, versions=[old]).wrong == ["torch 1.0 is not supported"]


def test_a_folder_that_is_gone():
    def gone():
        raise FileNotFoundError(2, "No such file or directory")

    assert machine._folder("current folder", gone) == Folder("current folder", "No such file or directory", None, False)
