"""Files of states: what is saved is loaded, and what is not a state is refused."""

import json
import re
import struct

import pytest
import safetensors.torch
import torch

import varla
from tests.ops.operators import (
    KINDS,
    STATES,
    call,
    make_inputs,
    make_state,
)
from tests.ops.test_state import assert_same_state, each_kind
from varla.files import digest

PAIRS = [(kind, other) for kind in KINDS for other in KINDS if kind != other]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@each_kind
def test_a_file_gives_back_every_bit(kind, dtype, tmp_path):
    _, state = call(kind, make_inputs(kind, dtype=dtype), return_state=True)
    path = tmp_path / "memory.safetensors"
    state.save(path)
    loaded = STATES[kind].load(path)
    assert_same_state(kind, loaded, state)
    assert [x.name for x in tmp_path.iterdir()] == [path.name]
    again, _ = call(kind, make_inputs(kind, dtype=dtype), initial_state=loaded, return_state=True)
    assert torch.equal(again, call(kind, make_inputs(kind, dtype=dtype), initial_state=state))


@each_kind
def test_a_file_keeps_what_is_not_a_number(kind, tmp_path):
    state = make_state(kind)
    state.S[0, 0, 0] = torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64)
    state.save(tmp_path / "x")
    loaded = STATES[kind].load(tmp_path / "x")
    assert torch.equal(loaded.S.view(torch.int64), state.S.view(torch.int64))


@each_kind
def test_paths_may_be_strings_and_any_state_can_be_saved(kind, tmp_path):
    path = str(tmp_path / "with space.bin")
    inputs = {name: x.requires_grad_() for name, x in make_inputs(kind).items()}
    _, state = call(kind, inputs, return_state=True)
    state.save(path)
    assert_same_state(kind, STATES[kind].load(path), state)
    assert not STATES[kind].load(path).S.requires_grad
    # Views: not contiguous, or into the same memory as another tensor.
    state = make_state(kind)
    state.S = state.S.mT.contiguous().mT
    if kind == "vla":
        state.z = state.A[..., 0]
    state.save(path)
    assert_same_state(kind, STATES[kind].load(path), state)
    empty = make_state(kind, batch=0)
    empty.save(path)
    assert_same_state(kind, STATES[kind].load(path), empty)


@each_kind
def test_saving_replaces_what_was_there(kind, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_text("something else, and much longer than nothing" * 1000)
    make_state(kind, seed=5).save(path)
    make_state(kind).save(path)
    assert_same_state(kind, STATES[kind].load(path), make_state(kind))
    assert [x.name for x in tmp_path.iterdir()] == [path.name]


@each_kind
def test_a_loaded_state_does_not_lean_on_its_file(kind, tmp_path):
    path = tmp_path / "x.safetensors"
    make_state(kind).save(path)
    loaded = STATES[kind].load(path)
    path.write_bytes(bytes(path.stat().st_size))  # in place, as `cp` does
    assert_same_state(kind, loaded, make_state(kind))
    make_state(kind, seed=9, t=50).save(path)
    path.unlink()
    loaded.S.add_(0)
    assert_same_state(kind, loaded, make_state(kind))


@each_kind
def test_saving_to_a_folder_that_is_not_there_is_an_error(kind, tmp_path):
    with pytest.raises(OSError, match="missing"):
        make_state(kind).save(tmp_path / "missing" / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there_before", [True, False])
@each_kind
def test_a_state_that_cannot_be_saved_leaves_the_folder_as_it_was(kind, there_before, tmp_path):
    path = tmp_path / "x.safetensors"
    if there_before:
        make_state(kind).save(path)
    with pytest.raises(ValueError, match="S is on the meta device"):
        make_state(kind, seed=5).to("meta").save(path)
    assert [x.name for x in tmp_path.iterdir()] == [path.name] * there_before
    if there_before:
        assert_same_state(kind, STATES[kind].load(path), make_state(kind))


@pytest.mark.parametrize("there_before", [True, False])
def test_a_full_disk_leaves_the_folder_as_it_was(there_before, tmp_path):
    resource = pytest.importorskip("resource")
    path = tmp_path / "x.safetensors"
    if there_before:
        make_state("vla").save(path)
    big = make_state("vla", batch=200)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (big.nbytes // 2, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            big.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.filename == str(path)
    assert [x.name for x in tmp_path.iterdir()] == [path.name] * there_before
    if there_before:
        assert_same_state("vla", varla.VLAState.load(path), make_state("vla"))


# --- Files that are not loaded ----------------------------------------------------------------------------------------


def assert_not_loaded(kind, path):
    with pytest.raises(ValueError, match=re.escape(path.name)) as caught:
        STATES[kind].load(path)
    return str(caught.value)


def header_of(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return content[8 : 8 + length]


def save_under_the_header_of(kind, tensors, path):
    """The tensors with the right checksum, as another state."""
    make_state(kind).save(path)
    metadata = json.loads(header_of(path))["__metadata__"]
    safetensors.torch.save_file(tensors, path, {**metadata, "checksum": digest(tensors)})


@pytest.mark.parametrize("kind", ["vla", "linear_attention"])
def test_files_of_earlier_versions_have_a_float32_z(kind, tmp_path):
    state = make_state(kind, dtype=torch.float32)
    tensors = {name: x.float() if name == "z" else x for name, x in state.tensors().items()}
    metadata = {"state": STATES[kind].__name__, "version": "1"}
    safetensors.torch.save_file(tensors, tmp_path / "old.safetensors", metadata)
    found = STATES[kind].load(tmp_path / "old.safetensors")
    assert torch.equal(found.z, state.z.float().double())


@each_kind
def test_a_file_that_is_not_there(kind, tmp_path):
    path = tmp_path / "nowhere.safetensors"
    for name in (path, str(path)):
        with pytest.raises(FileNotFoundError, match="nowhere"):
            STATES[kind].load(name)


@each_kind
def test_a_folder_is_not_loaded(kind, tmp_path):
    assert_not_loaded(kind, tmp_path)


@pytest.mark.parametrize(("kind", "other"), PAIRS)
def test_a_state_of_another_mechanism_is_not_loaded(kind, other, tmp_path):
    path = tmp_path / "other.safetensors"
    make_state(other).save(path)
    message = assert_not_loaded(kind, path)
    assert STATES[kind].__name__ in message
    assert STATES[other].__name__ in message
    save_under_the_header_of(other, make_state(kind).tensors(), path)
    assert_not_loaded(kind, path)


@each_kind
def test_a_file_cut_short_or_with_more_at_its_end_is_not_loaded(kind, tmp_path):
    path = tmp_path / "whole.safetensors"
    make_state(kind).save(path)
    content = path.read_bytes()
    for length in (*range(0, len(content), 37), len(content) - 1):
        path.write_bytes(content[:length])
        assert_not_loaded(kind, path)
    path.write_bytes(content + b"\0" * 8)
    assert_not_loaded(kind, path)


DAMAGE = {
    "length too large": lambda length, header: (b"\xff" * 8, header),
    "length zero": lambda length, header: (b"\0" * 8, header),
    "not JSON": lambda length, header: (length, b"x" * len(header)),
    "open JSON": lambda length, header: (length, b"{" * len(header)),
    "unknown tensor": lambda length, header: (length, header.replace(b'"S":', b'"R":')),
    "a tensor twice": lambda length, header: (length, header.replace(b'"t":', b'"S":')),
    "another size": lambda length, header: (length, header.replace(b"F64", b"F32")),
    "integers": lambda length, header: (length, header.replace(b"F64", b"I64")),
    "floating t": lambda length, header: (length, header.replace(b"I64", b"F64")),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_header_is_not_loaded(damage, tmp_path):
    path = tmp_path / "bad.safetensors"
    for kind in KINDS:
        make_state(kind).save(path)
        content, header = path.read_bytes(), header_of(path)
        bad = b"".join(DAMAGE[damage](content[:8], header)) + content[8 + len(header) :]
        assert bad != content
        path.write_bytes(bad)
        assert_not_loaded(kind, path)


@each_kind
def test_a_flipped_bit_is_found(kind, tmp_path):
    """In the numbers every one; in the header those that change what is read."""
    path = tmp_path / "flipped.safetensors"
    state = make_state(kind)
    state.save(path)
    content = path.read_bytes()
    start = 8 + len(header_of(path))
    for place in (*range(0, start, 3), *range(start, len(content), 37)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            found = STATES[kind].load(path)
        except ValueError:
            assert_not_loaded(kind, path)
        else:
            assert place < start
            assert_same_state(kind, found, state)


@each_kind
def test_a_file_of_the_first_version_has_no_checksum(kind, tmp_path):
    path = tmp_path / "old.safetensors"
    state = make_state(kind)
    metadata = {"state": STATES[kind].__name__, "version": "1"}
    safetensors.torch.save_file(state.tensors(), path, metadata)
    assert_same_state(kind, STATES[kind].load(path), state)
    safetensors.torch.save_file(state.tensors(), path, {**metadata, "checksum": digest(state.tensors())})
    assert "damaged" in assert_not_loaded(kind, path)
    safetensors.torch.save_file(state.tensors(), path, {**metadata, "version": "2"})
    assert "damaged" in assert_not_loaded(kind, path)
    safetensors.torch.save_file(state.tensors(), path, {**metadata, "version": "3"})
    assert "version '3'" in assert_not_loaded(kind, path)


OTHER = {
    "empty": b"",
    "one byte": b"x",
    "text": b"not a state" * 100,
    "zeros": b"\0" * 1000,
    "zip": b"PK\x03\x04" + b"\0" * 100,
    "json": b"{}",
    "no tensors": b"\x08" + b"\0" * 7 + b"{}      ",
}


@pytest.mark.parametrize("what", OTHER)
def test_something_else_is_not_loaded(what, tmp_path):
    path = tmp_path / "other.bin"
    path.write_bytes(OTHER[what])
    for kind in KINDS:
        assert_not_loaded(kind, path)


@each_kind
def test_tensors_that_were_not_saved_as_a_state_are_not_loaded(kind, tmp_path):
    path = tmp_path / "model"
    torch.save(make_state(kind).tensors(), path)
    assert_not_loaded(kind, path)
    for tensors in ({"weight": torch.zeros(3)}, make_state(kind).tensors()):
        safetensors.torch.save_file(tensors, path)
        assert_not_loaded(kind, path)


def wrongly_made(kind):
    """Tensors that do not make a state, to go under the header of one."""
    good = make_state(kind).tensors()
    yield {**good, "more": torch.zeros(2)}
    for name, x in good.items():
        yield {key: y for key, y in good.items() if key != name}
        for bad in (x[None], x[:1].clone(), x.to(torch.int32), x.to(torch.float16)):
            yield {**good, name: bad}
    if kind != "delta_rule":
        yield {**good, "S": good["S"][:, :1].clone()}
        cut = "z" if "z" in good else "f"
        yield {**good, cut: good[cut][..., :-1].clone()}
    if "A" in good:
        yield {**good, "S": good["S"].float()}
        yield {**good, "A": good["A"][..., :-1].clone()}


@each_kind
def test_tensors_that_do_not_make_a_state_are_not_loaded(kind, tmp_path):
    path = tmp_path / "odd.safetensors"
    for tensors in wrongly_made(kind):
        save_under_the_header_of(kind, tensors, path)
        assert_not_loaded(kind, path)
