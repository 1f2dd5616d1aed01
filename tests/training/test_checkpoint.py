"""Checkpoints: what is read is what was saved, or an error that names the file."""

import json
import random
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.training.test_loop import tiny
from varla.files import digest
from varla.training import build_model, checkpoint, train
from varla.training.optimizer import adamw

FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
STEP = "step-00000002"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    train(tiny("train.steps=2"), folder, device="cpu")
    return folder / "checkpoints" / STEP


@pytest.fixture
def copy(saved, tmp_path):
    shutil.copytree(saved, tmp_path / STEP)
    return tmp_path / STEP


@pytest.fixture(scope="module")
def model():
    return build_model(tiny("train.steps=2"))


def everything(path, model):
    """All that a checkpoint restores, as one checksum and a few numbers."""
    optimizer, generator = adamw(model.parameters()), torch.Generator()
    step, seconds = checkpoint.load(path, model, optimizer, generator)
    names = dict(model.named_parameters())
    moments = {f"{n}/{key}": x for n, p in names.items() for key, x in optimizer.state[p].items()}
    return digest(model.state_dict()), digest(moments), digest({"": generator.get_state()}), step, seconds


@pytest.mark.parametrize("name", FILES)
def test_every_damage_is_named_or_changes_nothing(saved, copy, model, name):
    before, choose = everything(saved, model), random.Random(0)
    whole = (saved / name).read_bytes()
    header = int.from_bytes(whole[:8], "little") + 8 if name != "state.json" else len(whole)
    refused = []
    for i in range(150):
        content = bytearray(whole)
        at = choose.randrange(header if i % 2 else len(whole))  # every other one in the header, where all is structure
        if i % 5 == 0:
            del content[at:]
        elif i % 5 == 1:
            content[at:at] = choose.randbytes(3)
        else:
            content[at] ^= 1 << choose.randrange(8)
        (copy / name).write_bytes(content)
        try:
            found = everything(copy, model)
        except ValueError as error:
            refused.append(str(error))
        else:
            assert found == before
    assert len(refused) > 100
    assert all(name in message for message in refused)


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(copy, model, name):
    (copy / name).unlink()
    with pytest.raises(ValueError, match=name):
        everything(copy, model)


def rewrite(path, change):
    """Change state.json, checksum included."""
    state = json.loads((path / "state.json").read_text())
    del state["checksum"]
    change(state)
    (path / "state.json").write_text(json.dumps({**state, "checksum": checkpoint._checksum(state)}))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("step", -17, "is of step -17, its folder is step-00000002"),
        ("step", 3, "is of step 3, its folder is step-00000002"),
        ("step", 2.0, "must hold step, seconds"),
        ("step", True, "must hold step, seconds"),
        ("seconds", float("nan"), "seconds must be a time, got nan"),
        ("seconds", -1.0, "seconds must be a time, got -1.0"),
        ("device", "cuda", "was made on cuda and cannot be resumed on cpu"),
        ("generator", "00" * 16, "no state of a cpu generator: 16 bytes instead of 5056"),
        ("generator", "00" * 5056, "no state of a cpu generator"),
        ("generator", "zz", "no state of a cpu generator"),
        ("more", 1, "must hold step, seconds.* and nothing else"),
    ],
)
def test_state_that_no_run_saves_is_refused(copy, model, key, value, message):
    rewrite(copy, lambda state: state.update({key: value}))
    with pytest.raises(ValueError, match=message):
        everything(copy, model)


def test_state_without_a_checksum_is_refused(copy, model):
    state = json.loads((copy / "state.json").read_text())
    del state["checksum"]
    (copy / "state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match=r"state.json is damaged: it must hold .*checksum"):
        everything(copy, model)


def drop(tensors, name):
    del tensors[name]


def put(tensors, name, value):
    tensors[name] = value


NAME = "embedding.weight"


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("model", lambda x: drop(x, NAME), f"another model: {NAME} differ"),
        ("model", lambda x: put(x, NAME, x[NAME].double()), f"another model: {NAME} differ"),
        ("model", lambda x: put(x, NAME, x[NAME].flatten()), f"another model: {NAME} differ"),
        ("model", lambda x: put(x, "other", torch.zeros(1)), "another model: other differ"),
        ("optimizer", lambda x: drop(x, f"{NAME}/exp_avg_sq"), f"another model: {NAME}/exp_avg_sq differ"),
        ("optimizer", lambda x: drop(x, f"{NAME}/step"), f"another model: {NAME}/exp_avg, {NAME}/exp_avg_sq differ"),
        ("optimizer", lambda x: put(x, f"{NAME}/exp_avg", x[f"{NAME}/exp_avg"].half()), f"{NAME}/exp_avg differ"),
        ("optimizer", lambda x: put(x, f"{NAME}/step", torch.tensor([2.0])), f"{NAME}/step differ"),
        ("optimizer", lambda x: put(x, f"{NAME}/step", torch.tensor(-17.0)), f"counts -17.0 steps of {NAME}"),
        ("optimizer", lambda x: put(x, f"{NAME}/step", torch.tensor(torch.nan)), f"counts nan steps of {NAME}"),
        ("optimizer", lambda x: put(x, "nonsense", torch.zeros(1)), "another model: nonsense differ"),
    ],
)
def test_tensors_of_another_model_are_refused(copy, model, file, change, message):
    """With a checksum that fits, as if such a model had been saved."""
    path = copy / f"{file}.safetensors"
    tensors = {name: x.clone() for name, x in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)
    rewrite(copy, lambda state: state.update({path.name: digest(tensors)}))
    before = digest(model.state_dict())
    with pytest.raises(ValueError, match=rf"{path.name} .*{message}"):
        everything(copy, model)
    assert digest(model.state_dict()) == before, "nothing is changed before all is checked"


def test_files_of_two_checkpoints_do_not_mix(saved, copy, model, tmp_path):
    train(tiny("train.steps=2", "seed=1"), tmp_path / "other", device="cpu")
    for name in FILES[:2]:
        shutil.copy(tmp_path / "other" / "checkpoints" / STEP / name, copy / name)
        with pytest.raises(ValueError, match=f"{name} is damaged: its tensors are not those that were saved"):
            everything(copy, model)
        shutil.copy(saved / name, copy / name)


def test_a_step_after_the_end_is_refused(saved, tmp_path):
    shutil.copytree(saved.parent.parent, tmp_path / "run")
    newest = tmp_path / "run" / "checkpoints" / STEP
    rewrite(newest, lambda state: state.update(step=3))
    newest.rename(newest.with_name("step-00000003"))
    with pytest.raises(ValueError, match=r"step-00000003 is of step 3, but the run has 2 steps"):
        train(tiny("train.steps=2"), tmp_path / "run", resume=True, device="cpu")


def test_a_parameter_without_a_gradient_has_no_moments_and_resumes(tmp_path, model):
    optimizer, generator = adamw(model.parameters()), torch.Generator()
    name, parameter = next(model.named_parameters())
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    path = checkpoint.save(tmp_path, 1, model, optimizer, generator)
    again = adamw(model.parameters())
    checkpoint.load(path, model, again, generator)
    assert list(again.state) == [parameter], name
