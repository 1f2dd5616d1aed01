"""A saved session goes on bit for bit, and only with its own model; files that are anything else are refused."""

import json
import os
import struct

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import varla
from tests.session.cases import tiny
from varla.files import digest
from varla.layers import MECHANISMS
from varla.session import file as module

MODELS = [*MECHANISMS, ["vla", "softmax"]]


def ids(length, seed=0):
    return torch.randint(3, 259, (length,), generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def saved(tmp_path):
    """(model, file of a session with it)."""
    model = tiny()
    varla.Session(model).feed(ids(30)).save(tmp_path / "state")
    return model, tmp_path / "state"


def contents(path):
    with safe_open(path, "pt") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def rewrite(path, metadata=None, tensors=None, drop=()):
    """The file with changes, its checksum right again."""
    header, held = contents(path)
    held = {name: x for name, x in {**held, **(tensors or {})}.items() if name not in drop}
    header = {**header, "checksum": digest(held), **(metadata or {})}
    save_file(held, path, {key: value for key, value in header.items() if value is not None})


def assert_refused(path, model, *words):
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        varla.Session.load(path, model)
    assert all(word in str(caught.value) for word in (path.name, *words)), caught.value
    assert before is None or path.read_bytes() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("mechanisms", MODELS, ids=str)
def test_a_loaded_session_goes_on_bit_for_bit(mechanisms, dtype, tmp_path):
    model = tiny(mechanisms).to(dtype)
    session = varla.Session(model).feed(ids(30))
    session.save(tmp_path / "state")
    other = varla.Session.load(tmp_path / "state", model)
    assert other.position == 30
    assert other.nbytes == session.nbytes
    assert torch.equal(other.logits, session.logits)
    for _ in range(2):
        assert list(other.generate(8, seed=1)) == list(session.generate(8, seed=1))
        assert torch.equal(other.logits, session.logits)
        assert torch.equal(other.feed(ids(40, seed=2)).logits, session.feed(ids(40, seed=2)).logits)


@pytest.mark.parametrize("changes", [{"short_conv": None}, {"short_conv": 1}, {"tie_word_embeddings": False}], ids=str)
def test_other_shapes_of_states(changes, tmp_path):
    model = tiny(**changes)
    session = varla.Session(model).feed(ids(30))
    session.save(tmp_path / "state")
    assert torch.equal(varla.Session.load(tmp_path / "state", model).feed([7]).logits, session.feed([7]).logits)


def test_an_empty_session_can_be_saved(tmp_path):
    model = tiny()
    varla.Session(model).save(tmp_path / "state")
    session = varla.Session.load(tmp_path / "state", model)
    assert session.position == 0
    assert torch.equal(session.feed([5]).logits, varla.Session(model).feed([5]).logits)


def test_a_loaded_session_does_not_lean_on_its_file(saved):
    model, path = saved
    session = varla.Session.load(path, model)
    wanted = session.logits
    path.write_bytes(bytes(path.stat().st_size))  # in place, as `cp` does
    assert torch.equal(session.logits, wanted)
    assert torch.equal(session.feed([7]).logits, varla.Session(model).feed(ids(30)).feed([7]).logits)


def test_the_file_has_one_size(tmp_path):
    session = varla.Session(tiny())
    sizes = set()
    for n in (1, 998, 9000):
        session.feed(ids(n)).save(tmp_path / "state")
        sizes.add((tmp_path / "state").stat().st_size)
    assert len(sizes) == 1


def test_settings_that_make_no_difference_may_differ(saved):
    model, path = saved
    model.config.max_position_embeddings = 7
    model.config.eos_token_id = 5
    assert varla.Session.load(path, model).position == 30


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hidden_size": 32}, ["hidden_size is 16 there, 32 here"]),
        ({"mechanisms": "linear"}, ["mechanisms is ['vla', 'vla'] there, ['linear', 'linear'] here"]),
        ({"mechanism_options": {"vla": {"gain": "projection"}}}, ["mechanism_options is {} there"]),
        ({"vocab_size": 300, "num_hidden_layers": 3, "short_conv": 3}, ["num_hidden_layers", "and 1 more"]),
        ({"seed": 1}, ["weights differ", "settings are this model's"]),
    ],
    ids=str,
)
def test_the_state_of_another_model_is_refused(saved, changes, words):
    assert_refused(saved[1], tiny(**changes), "state of another model", *words)


def test_one_step_of_training_makes_another_model(saved):
    model, path = saved
    with torch.no_grad():
        model.model.layers[1].mixer.k.weight.mul_(1.001)
    assert_refused(path, model, "state of another model", "weights differ")
    assert_refused(path, tiny().double(), "weights differ", "dtype")


def test_one_number_makes_another_model(saved):
    """Every number counts, wherever it is."""
    model, path = saved
    varla.Session.load(path, model)  # the digest is known from here on
    for name, x in model.named_parameters():
        place = int(torch.randint(x.numel(), (1,), generator=torch.Generator().manual_seed(x.numel())))
        with torch.no_grad():
            before = x.view(-1)[place].clone()
            x.view(-1)[place] += 1e-3
            assert_refused(path, model, "weights differ")
            x.view(-1)[place] = before
        assert varla.Session.load(path, model).position == 30, name


def test_weights_that_changed_unseen(saved):
    """PyTorch does not count changes through `.data`; replaced tensors have counts of their own."""
    model, path = saved
    varla.Session.load(path, model)
    model.model.norm.weight.data.mul_(1.001)
    assert_refused(path, model, "weights differ")
    model.model.norm.weight = torch.nn.Parameter(model.model.norm.weight.detach() + 1)
    assert_refused(path, model, "weights differ")


def test_weights_are_hashed_once(saved, monkeypatch):
    model, path = saved
    calls = []
    monkeypatch.setattr(module, "digest", lambda held: calls.append(len(held)) or digest(held))
    for _ in range(3):
        varla.Session.load(path, model).feed([5]).save(path)
    size = len(model.state_dict())
    assert calls.count(size) == 0  # the fixture's `save` did it
    with torch.no_grad():
        model.model.norm.weight.mul_(1)
    varla.Session.load(path, model)
    varla.Session.load(path, model)
    assert calls.count(size) == 1


def test_inference_tensors_are_hashed_every_time(tmp_path):
    with torch.inference_mode():
        model = tiny()
        varla.Session(model).feed(ids(3)).save(tmp_path / "state")
        weight = model.model.layers[0].mixer.k.weight
        weight[3, 5] += 1e-3
        assert_refused(tmp_path / "state", model, "weights differ")


@pytest.mark.parametrize("type_", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("mechanisms", MODELS, ids=str)
def test_a_session_of_autocast_goes_on_inside_and_outside(mechanisms, type_, tmp_path):
    model = tiny(mechanisms)
    for inside in (True, False):
        with torch.autocast("cpu", type_, enabled=inside):
            session = varla.Session(model).feed(ids(30))
            session.save(tmp_path / "state")
        with torch.autocast("cpu", type_, enabled=not inside):
            other = varla.Session.load(tmp_path / "state", model)
            assert torch.equal(other.logits, session.logits)
            assert list(other.generate(4, seed=1)) == list(session.generate(4, seed=1))
            assert torch.equal(other.feed(ids(9)).logits, session.feed(ids(9)).logits)


def test_versions_and_foreign_files(saved, tmp_path):
    model, path = saved
    for version in ("1", "3", None):
        rewrite(path, {"version": version})
        assert_refused(path, model, f"version {version!r}", "reads '2'", "feed the tokens again")
    save_file({"x": torch.zeros(3)}, path)
    assert_refused(path, model, "not a saved session", "another safetensors file")
    varla.vla(*torch.zeros(4, 1, 3, 1, 4), return_state=True)[1].save(path)
    assert_refused(path, model, "not a saved session")
    for data in (b"", b"hello", b"\0" * 100):
        path.write_bytes(data)
        assert_refused(path, model, "not a saved session, or was cut short")
    assert_refused(tmp_path, model, "a folder")
    assert_refused(tmp_path / "none", model, "is not there")


@pytest.mark.parametrize("config", ["[" * 100_000, '{"a":' * 100_000, "null", "{"])
def test_a_header_that_cannot_be_read(saved, config):
    model, path = saved
    rewrite(path, {"config": config})
    assert_refused(path, model, "damaged", "its header cannot be read")


@pytest.mark.parametrize("share", [0.01, 0.3, 0.9, 0.999])
def test_a_file_that_was_cut_short(saved, share):
    model, path = saved
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert_refused(path, model, "cut short")


def test_a_changed_byte_is_noticed(saved):
    model, path = saved
    data = bytearray(path.read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    for place in (start, (start + len(data)) // 2, len(data) - 1):
        changed = bytearray(data)
        changed[place] ^= 1
        path.write_bytes(changed)
        assert_refused(path, model, "damaged")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metadata": {"config": "{"}}, ["damaged", "header"]),
        ({"metadata": {"config": "3"}}, ["damaged", "header"]),
        ({"metadata": {"weights": None}}, ["damaged", "header"]),
        ({"drop": ["layers.1.A"]}, ["damaged", "layers.1.A is missing"]),
        ({"drop": ["logits"]}, ["damaged", "logits is missing"]),
        ({"drop": ["position"]}, ["damaged", "position is missing"]),
        ({"tensors": {"layers.0.S": torch.zeros(1, 2, 8, 7)}}, ["does not fit", "layers.0.S", "[1, 2, 8, 7]"]),
        ({"tensors": {"layers.0.S": torch.zeros(2, 2, 8, 8)}}, ["does not fit", "[2, 2, 8, 8]"]),
        ({"tensors": {"layers.0.S": torch.zeros(1, 2, 8, 8).double()}}, ["does not fit", "float64"]),
        ({"tensors": {"layers.0.t": torch.tensor([3])}}, ["damaged", "layer 0 has seen [3] tokens, not 30"]),
        ({"tensors": {"position": torch.tensor([31])}}, ["damaged", "not 31"]),
        ({"tensors": {"position": torch.tensor([0])}}, ["damaged", "which no session has"]),
        ({"tensors": {"position": torch.tensor([-1])}}, ["damaged"]),
        ({"tensors": {"layers.2.S": torch.zeros(3)}}, ["damaged", "layers.2.S", "no session has"]),
        ({"tensors": {"text": torch.tensor([2, 9] + [-1] * 30)}}, ["damaged", "its text"]),
        ({"tensors": {"text": torch.tensor([0, 259] + [-1] * 30)}}, ["damaged", "its text"]),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit(saved, changes, words):
    model, path = saved
    rewrite(path, **changes)
    assert_refused(path, model, *words)


def test_a_softmax_cache_must_hold_all_tokens(tmp_path):
    model, path = tiny("softmax"), tmp_path / "state"
    varla.Session(model).feed(ids(30)).save(path)
    tensors = contents(path)[1]
    rewrite(path, tensors={"layers.0.k": tensors["layers.0.k"][:, :29].contiguous()})
    assert_refused(path, model, "layers.0.k", "[1, 30, 2, 8]", "[1, 29, 2, 8]")


def test_only_a_session_is_written_over(saved, tmp_path):
    model, path = saved
    session = varla.Session(model).feed(ids(3))
    session.save(path)
    assert varla.Session.load(path, model).position == 3
    for name, data in (("notes.txt", b"dear diary"), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match="not a saved session: it is not written over"):
            session.save(tmp_path / name)
        assert (tmp_path / name).read_bytes() == data
    save_file({"x": torch.zeros(3)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="not written over"):
        session.save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="is a folder"):
        session.save(tmp_path)
    with pytest.raises(ValueError, match="is not a folder"):
        session.save(tmp_path / "none" / "state")


def test_a_folder_that_may_not_be_written_to_is_found_before_anything_is_generated(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: not (path == tmp_path and mode == os.W_OK))  # root may always
    with pytest.raises(ValueError, match=r"state cannot be written: .* does not allow it"):
        module.check_target(tmp_path / "state")


def test_a_write_that_fails_leaves_the_old_one(saved, monkeypatch):
    model, path = saved
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        varla.Session(model).feed(ids(3)).save(path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_header_is_json_that_says_which_model(saved):
    header = contents(saved[1])[0]
    assert (header["format"], header["version"]) == ("varla session", "2")
    assert json.loads(header["config"])["hidden_size"] == 16
