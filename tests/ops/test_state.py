"""The states: what they hold, how they travel, and that a sequence can be left and taken up again anywhere."""

import json
import struct
from itertools import pairwise

import pytest
import safetensors
import safetensors.torch
import torch
from torch.utils import _pytree as pytree

import varla

OPS = ("vla", "linear_attention", "delta_rule")
BACKENDS = {
    "vla": ("reference", "scan", "chunk", "auto"),
    "linear_attention": ("reference", "chunk", "auto"),
    "delta_rule": ("reference", "chunk", "auto"),
}
OPS_AND_BACKENDS = [(op, backend) for op in OPS for backend in BACKENDS[op]]
STATES = {
    "vla": varla.VLAState,
    "linear_attention": varla.LinearAttentionState,
    "delta_rule": varla.DeltaRuleState,
}
FIELDS = {"vla": ("S", "A", "z", "t"), "linear_attention": ("S", "z", "t"), "delta_rule": ("S", "t")}
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
B, T, H, D, DV = 2, 17, 3, 4, 5


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_inputs(op, batch=B, time=T, dtype=torch.float64, seed=0):
    gen = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)

    inputs = {name: normal(batch, time, H, D) for name in "qk"}
    inputs["v"] = normal(batch, time, H, DV)
    if op == "vla":
        inputs["u"] = normal(batch, time, H, D)
    if op == "delta_rule":
        inputs["beta"] = torch.sigmoid(normal(batch, time, H))
    return inputs


def make_state(op, batch=B, dtype=torch.float64, seed=1, t=3):
    gen = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64).to(dtype)

    root = normal(batch, H, D, D)
    tensors = {
        "S": normal(batch, H, DV, D),
        "A": root @ root.mT / D + torch.eye(D, dtype=dtype),
        "z": normal(batch, H, D).abs(),
        "t": torch.arange(t, t + batch),
    }
    return STATES[op](**{name: tensors[name] for name in FIELDS[op]})


def tensors_of(op, state):
    return {name: getattr(state, name) for name in FIELDS[op]}


def call(op, inputs, **options):
    return getattr(varla, op)(**inputs, **options)


def call_step(op, inputs, state=None, **options):
    return getattr(varla, f"{op}_step")(**inputs, state=state, **options)


def part(inputs, start, stop):
    return {name: x[:, start:stop] for name, x in inputs.items()}


def token(inputs, i):
    return {name: x[:, i] for name, x in inputs.items()}


def options_of(op):
    """A refresh that falls inside and between the pieces below."""
    return {"refresh_every": 4, "refresh": 0.05} if op == "vla" else {}


def assert_near(got, expected, tolerance=1e-12, name=""):
    assert got.shape == expected.shape, name
    assert got.dtype == expected.dtype, name
    assert (got - expected).abs().max() <= tolerance * expected.abs().max(), name


def assert_same_state(op, got, expected):
    assert type(got) is STATES[op]
    for name, x in tensors_of(op, expected).items():
        assert getattr(got, name).dtype == x.dtype, name
        assert torch.equal(getattr(got, name), x), name


def assert_near_state(op, got, expected, tolerance=1e-12):
    assert type(got) is STATES[op]
    assert torch.equal(got.t, expected.t)
    for name in FIELDS[op][:-1]:
        assert_near(getattr(got, name), getattr(expected, name), tolerance, name)


# --- What a state holds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_shapes_and_types(op, backend, dtype):
    o, state = call(op, make_inputs(op, dtype=dtype), backend=backend, return_state=True)
    assert o.dtype == dtype
    assert o.shape == (B, T, H, DV)
    assert type(state) is STATES[op]
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    shapes = {"S": (B, H, DV, D), "A": (B, H, D, D), "z": (B, H, D), "t": (B,)}
    for name, x in tensors_of(op, state).items():
        assert x.shape == shapes[name]
        assert x.dtype == (torch.int64 if name == "t" else kept)
    assert state.t.tolist() == [T] * B
    o, state = call(op, make_inputs(op, dtype=dtype), backend=backend, initial_state=state, return_state=True)
    assert o.dtype == dtype
    assert state.S.dtype == kept
    assert state.t.tolist() == [2 * T] * B


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_shapes_and_types_of_a_step(op, dtype):
    inputs = token(make_inputs(op, dtype=dtype), 0)
    state = None
    for seen in (1, 2, 3):
        o, state = call_step(op, inputs, state)
        assert o.dtype == dtype
        assert o.shape == (B, H, DV)
        assert type(state) is STATES[op]
        assert state.S.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
        assert state.t.dtype == torch.int64
        assert state.t.tolist() == [seen] * B


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_without_return_state_there_is_only_the_output(op, backend):
    inputs = make_inputs(op)
    o = call(op, inputs, backend=backend)
    assert isinstance(o, torch.Tensor)
    assert torch.equal(o, call(op, inputs, backend=backend, return_state=True)[0])


@pytest.mark.parametrize("op", OPS)
def test_the_size_does_not_depend_on_the_tokens_seen(op):
    counts = {"S": H * DV * D, "A": H * D * D, "z": H * D, "t": 0}
    for dtype, size in ((torch.float32, 4), (torch.bfloat16, 4), (torch.float64, 8)):
        expected = B * (size * sum(counts[name] for name in FIELDS[op]) + 8)
        for time in (0, 1, T):
            _, state = call(op, make_inputs(op, time=time, dtype=dtype), return_state=True)
            assert state.nbytes == expected


# --- Moving, cutting, copying -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_to_moves_every_tensor(op):
    state = make_state(op)
    moved = state.to("meta")
    assert type(moved) is STATES[op]
    assert all(x.is_meta for x in tensors_of(op, moved).values())
    assert {n: (x.shape, x.dtype) for n, x in tensors_of(op, moved).items()} == {
        n: (x.shape, x.dtype) for n, x in tensors_of(op, state).items()
    }
    assert not state.S.is_meta
    assert_same_state(op, state.to(torch.device("cpu")), make_state(op))


@pytest.mark.parametrize("op", OPS)
def test_detach_cuts_the_graph_and_keeps_the_values(op):
    inputs = {name: x.requires_grad_() for name, x in make_inputs(op).items()}
    _, state = call(op, inputs, return_state=True)
    assert state.S.requires_grad
    cut = state.detach()
    assert_same_state(op, cut, state)
    assert not any(x.requires_grad for x in tensors_of(op, cut).values())
    assert state.S.requires_grad


@pytest.mark.parametrize("op", OPS)
def test_clone_shares_no_memory_and_stays_in_the_graph(op):
    state = make_state(op)
    copy = state.clone()
    assert_same_state(op, copy, state)
    for x in tensors_of(op, copy).values():
        x.zero_()
    assert_same_state(op, state, make_state(op))
    state.S.requires_grad_()
    state.clone().S.sum().backward()
    assert torch.equal(state.S.grad, torch.ones_like(state.S))


@pytest.mark.parametrize("op", OPS)
def test_tree_functions_see_the_tensors(op):
    state = make_state(op)
    leaves, spec = pytree.tree_flatten({"layers": [state]})
    assert len(leaves) == len(FIELDS[op])
    assert_same_state(op, pytree.tree_unflatten(leaves, spec)["layers"][0], state)
    doubled = pytree.tree_map(lambda x: 2 * x, (state, state))[1]
    assert_same_state(op, doubled, STATES[op](**{name: 2 * x for name, x in tensors_of(op, state).items()}))
    assert_same_state(op, state, make_state(op))


# --- Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_a_file_gives_back_every_bit(op, dtype, tmp_path):
    _, state = call(op, make_inputs(op, dtype=dtype), return_state=True)
    path = tmp_path / "memory.safetensors"
    state.save(path)
    loaded = STATES[op].load(path)
    assert_same_state(op, loaded, state)
    assert [x.name for x in tmp_path.iterdir()] == [path.name]
    again, _ = call(op, make_inputs(op, dtype=dtype), initial_state=loaded, return_state=True)
    assert torch.equal(again, call(op, make_inputs(op, dtype=dtype), initial_state=state))


@pytest.mark.parametrize("op", OPS)
def test_a_file_keeps_what_is_not_a_number(op, tmp_path):
    state = make_state(op)
    state.S[0, 0, 0] = torch.tensor([float("nan"), float("inf"), -0.0, 5e-324], dtype=torch.float64)
    state.save(tmp_path / "x")
    loaded = STATES[op].load(tmp_path / "x")
    assert torch.equal(loaded.S.view(torch.int64), state.S.view(torch.int64))


@pytest.mark.parametrize("op", OPS)
def test_paths_may_be_strings_and_any_state_can_be_saved(op, tmp_path):
    path = str(tmp_path / "with space.bin")
    inputs = {name: x.requires_grad_() for name, x in make_inputs(op).items()}
    _, state = call(op, inputs, return_state=True)
    state.save(path)
    assert_same_state(op, STATES[op].load(path), state)
    assert not STATES[op].load(path).S.requires_grad
    # Views: not contiguous, or into the same memory as another tensor.
    state = make_state(op)
    state.S = state.S.mT.contiguous().mT
    if op == "vla":
        state.z = state.A[..., 0]
    state.save(path)
    assert_same_state(op, STATES[op].load(path), state)
    empty = make_state(op, batch=0)
    empty.save(path)
    assert_same_state(op, STATES[op].load(path), empty)


@pytest.mark.parametrize("op", OPS)
def test_saving_replaces_what_was_there(op, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_text("something else, and much longer than nothing" * 1000)
    make_state(op, seed=5).save(path)
    make_state(op).save(path)
    assert_same_state(op, STATES[op].load(path), make_state(op))
    assert [x.name for x in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("op", OPS)
def test_a_loaded_state_does_not_lean_on_its_file(op, tmp_path):
    path = tmp_path / "x.safetensors"
    make_state(op).save(path)
    loaded = STATES[op].load(path)
    make_state(op, seed=9, t=50).save(path)
    path.unlink()
    loaded.S.add_(0)
    assert_same_state(op, loaded, make_state(op))


@pytest.mark.parametrize("op", OPS)
def test_saving_to_a_folder_that_is_not_there_is_an_error(op, tmp_path):
    with pytest.raises(OSError, match="missing"):
        make_state(op).save(tmp_path / "missing" / "x.safetensors")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there_before", [True, False])
@pytest.mark.parametrize("op", OPS)
def test_a_state_that_cannot_be_saved_leaves_the_folder_as_it_was(op, there_before, tmp_path):
    path = tmp_path / "x.safetensors"
    if there_before:
        make_state(op).save(path)
    with pytest.raises(Exception):  # noqa: B017, PT011 - which error is torch's to say
        make_state(op, seed=5).to("meta").save(path)
    assert [x.name for x in tmp_path.iterdir()] == [path.name] * there_before
    if there_before:
        assert_same_state(op, STATES[op].load(path), make_state(op))


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
        with pytest.raises(Exception):  # noqa: B017, PT011 - which error is the writer's to say
            big.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [x.name for x in tmp_path.iterdir()] == [path.name] * there_before
    if there_before:
        assert_same_state("vla", varla.VLAState.load(path), make_state("vla"))


@pytest.mark.parametrize("op", OPS)
def test_a_file_that_is_not_there(op, tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        STATES[op].load(tmp_path / "nowhere.safetensors")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        STATES[op].load(str(tmp_path / "nowhere.safetensors"))


@pytest.mark.parametrize("op", OPS)
def test_a_folder_is_not_loaded(op, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises((ValueError, OSError), match="folder"):
        STATES[op].load(folder)


@pytest.mark.parametrize(("op", "other"), [(op, other) for op in OPS for other in OPS if op != other])
def test_a_state_of_another_mechanism_is_not_loaded(op, other, tmp_path):
    path = tmp_path / "other.safetensors"
    make_state(other).save(path)
    with pytest.raises(ValueError, match=r"other\.safetensors") as caught:
        STATES[op].load(path)
    assert STATES[op].__name__ in str(caught.value)
    assert STATES[other].__name__ in str(caught.value)


@pytest.mark.parametrize("op", OPS)
def test_a_truncated_file_is_not_loaded(op, tmp_path):
    path = tmp_path / "whole.safetensors"
    make_state(op).save(path)
    content = path.read_bytes()
    cut = tmp_path / "cut.safetensors"
    for length in (*range(0, len(content), 37), len(content) - 1):
        cut.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"cut\.safetensors"):
            STATES[op].load(cut)


@pytest.mark.parametrize("op", OPS)
def test_a_file_with_more_at_its_end_is_not_loaded(op, tmp_path):
    path = tmp_path / "more.safetensors"
    make_state(op).save(path)
    path.write_bytes(path.read_bytes() + b"\0" * 8)
    with pytest.raises(ValueError, match=r"more\.safetensors"):
        STATES[op].load(path)


def header_of(path):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 : 8 + length]


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
@pytest.mark.parametrize("op", OPS)
def test_a_damaged_header_is_not_loaded(op, damage, tmp_path):
    path = tmp_path / "bad.safetensors"
    make_state(op).save(path)
    content = path.read_bytes()
    header = header_of(path)[1]
    bad = b"".join(DAMAGE[damage](content[:8], header)) + content[8 + len(header) :]
    assert bad != content
    path.write_bytes(bad)
    with pytest.raises(ValueError, match=r"bad\.safetensors"):
        STATES[op].load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        b"not a state" * 100,
        b"\0" * 1000,
        b"PK\x03\x04" + b"\0" * 100,
        b"{}",
        b"\x08" + b"\0" * 7 + b"{}      ",
    ],
    ids=["empty", "one-byte", "text", "zeros", "zip", "json", "no-tensors"],
)
@pytest.mark.parametrize("op", OPS)
def test_something_else_is_not_loaded(op, content, tmp_path):
    path = tmp_path / "other.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"other\.bin"):
        STATES[op].load(path)


@pytest.mark.parametrize("op", OPS)
def test_a_pickled_state_is_not_loaded(op, tmp_path):
    path = tmp_path / "state.pt"
    torch.save(tensors_of(op, make_state(op)), path)
    with pytest.raises(ValueError, match=r"state\.pt"):
        STATES[op].load(path)


@pytest.mark.parametrize("op", OPS)
def test_other_tensors_in_the_right_format_are_not_loaded(op, tmp_path):
    path = tmp_path / "model.safetensors"
    for tensors in ({"weight": torch.zeros(3)}, tensors_of(op, make_state(op))):
        safetensors.torch.save_file(tensors, path)
        with pytest.raises(ValueError, match=r"model\.safetensors"):
            STATES[op].load(path)


@pytest.mark.parametrize(("op", "other"), [(op, other) for op in OPS for other in OPS if op != other])
def test_tensors_under_the_header_of_another_mechanism_are_not_loaded(op, other, tmp_path):
    path = tmp_path / "odd.safetensors"
    make_state(other).save(path)
    metadata = header_of(path)[0].get("__metadata__")
    safetensors.torch.save_file(tensors_of(op, make_state(op)), path, metadata)
    with pytest.raises(ValueError, match=r"odd\.safetensors"):
        STATES[op].load(path)


def wrongly_made(op):
    """Tensors that do not make a state, to go under the header of one."""
    good = tensors_of(op, make_state(op))
    cases = {"one too many": {**good, "more": torch.zeros(2)}}
    for name, x in good.items():
        cases[f"without {name}"] = {key: y for key, y in good.items() if key != name}
        cases[f"{name} of another rank"] = {**good, name: x[None]}
        cases[f"{name} of another batch"] = {**good, name: x[:1].clone()}
        cases[f"{name} of another type"] = {**good, name: x.to(torch.int32)}
        cases[f"{name} in low precision"] = {**good, name: x.to(torch.float16)}
    if op != "delta_rule":
        cases["mixed heads"] = {**good, "S": good["S"][:, :1].clone()}
        cases["mixed keys"] = {**good, "z": good["z"][..., :-1].clone()}
        cases["mixed precision"] = {**good, "S": good["S"].float()}
    if op == "vla":
        cases["A not square"] = {**good, "A": good["A"][..., :-1].clone()}
    return cases


@pytest.mark.parametrize(("op", "what"), [(op, what) for op in OPS for what in wrongly_made(op)])
def test_tensors_that_do_not_make_a_state_are_not_loaded(op, what, tmp_path):
    path = tmp_path / "odd.safetensors"
    make_state(op).save(path)
    metadata = header_of(path)[0].get("__metadata__")
    safetensors.torch.save_file(wrongly_made(op)[what], path, metadata)
    with pytest.raises(ValueError, match=r"odd\.safetensors"):
        STATES[op].load(path)


# --- Leaving off and taking up again ----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, T - 1])
@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_pieces_make_the_whole(op, backend, size):
    inputs, options = make_inputs(op), options_of(op)
    start = make_state(op)
    expected, expected_state = call(op, inputs, initial_state=start, return_state=True, backend=backend, **options)
    state, outputs = start, []
    for i in range(0, T, size):
        o, state = call(
            op, part(inputs, i, i + size), initial_state=state, return_state=True, backend=backend, **options
        )
        outputs.append(o)
    assert_near(torch.cat(outputs, dim=1), expected)
    assert_near_state(op, state, expected_state)
    assert_same_state(op, start, make_state(op))


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_steps_make_the_whole(op, backend):
    inputs, options = make_inputs(op), options_of(op)
    expected, expected_state = call(op, inputs, return_state=True, backend=backend, **options)
    state, outputs = None, []
    for i in range(T):
        before = state and state.clone()
        o, new = call_step(op, token(inputs, i), state, **options)
        if state is not None:
            assert_same_state(op, state, before)
        state = new
        outputs.append(o)
    assert_near(torch.stack(outputs, dim=1), expected)
    assert_near_state(op, state, expected_state)


def test_steps_take_every_setting():
    inputs = make_inputs("vla")
    settings = [
        {"gain": "projection", "feature_map": "identity", "normalizer": False},
        {"gain": "raw", "lambda0": 1.5, "penalty_scale": 1.0},
        {"normalize_key": False, "lambda0": 5.0},
        {"update_penalty": False},
        {"eps": 10.0},
        {"refresh_every": None},
        {"refresh_every": 2, "refresh": 0.3},
    ]
    plain = call("vla", inputs, backend="reference")
    for options in settings:
        expected, expected_state = call("vla", inputs, return_state=True, backend="reference", **options)
        if options != {"refresh_every": None}:
            assert (expected - plain).abs().max() > 1e-3
        state, outputs = None, []
        for i in range(T):
            o, state = call_step("vla", token(inputs, i), state, **options)
            outputs.append(o)
        assert_near(torch.stack(outputs, dim=1), expected)
        assert_near_state("vla", state, expected_state)


@pytest.mark.parametrize("backend", BACKENDS["vla"])
def test_the_refresh_is_counted_by_each_row_for_itself(backend):
    inputs = make_inputs("vla", batch=3, time=5)
    inputs["u"] = torch.zeros_like(inputs["u"])
    state = make_state("vla", batch=3)
    state.t = torch.tensor([0, 3, 6])
    _, after = call(
        "vla", inputs, initial_state=state, return_state=True, backend=backend, refresh_every=4, refresh=0.5
    )
    assert after.t.tolist() == [5, 8, 11]
    grown = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64) * 0.5
    expected = state.A + grown[:, None, None, None] * torch.eye(D, dtype=torch.float64)
    assert_near(after.A, expected)


@pytest.mark.parametrize("backend", BACKENDS["vla"])
def test_lambda0_is_unused_where_there_is_a_state(backend):
    inputs, state = make_inputs("vla"), make_state("vla")
    outputs = [call("vla", inputs, initial_state=state, backend=backend, lambda0=x) for x in (0.1, 7.0)]
    assert torch.equal(*outputs)


@pytest.mark.parametrize("op", OPS)
def test_the_state_that_comes_back_is_not_the_one_that_went_in(op):
    inputs, state = make_inputs(op), make_state(op)
    for backend in BACKENDS[op]:
        _, after = call(op, inputs, initial_state=state, return_state=True, backend=backend)
        for x in tensors_of(op, after).values():
            x.zero_()
        assert_same_state(op, state, make_state(op))
    _, after = call_step(op, token(inputs, 0), state)
    for x in tensors_of(op, after).values():
        x.zero_()
    assert_same_state(op, state, make_state(op))


# --- Gradients --------------------------------------------------------------------------------------------------------


def leaves_of(op, inputs, state):
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    roots = {name: x.clone().requires_grad_() for name, x in tensors_of(op, state).items() if name != "t"}
    tensors = {**roots, "t": state.t}
    if op == "vla":
        # A is symmetric; so is what a gradient may say about it.
        tensors["A"] = (roots["A"] + roots["A"].mT) / 2
    return leaves, roots, STATES[op](**tensors)


def loss_of(op, o, state):
    gen = torch.Generator().manual_seed(3)
    return sum(
        (x * torch.randn(x.shape, generator=gen, dtype=x.dtype)).sum()
        for x in (o, *(getattr(state, name) for name in FIELDS[op][:-1]))
    )


def gradients_of(op, backend, pieces, steps=False):
    inputs, roots, state = leaves_of(op, make_inputs(op), make_state(op))
    options, outputs, start = options_of(op), [], 0
    for size in pieces:
        if steps:
            for i in range(start, start + size):
                o, state = call_step(op, token(inputs, i), state, **options)
                outputs.append(o[:, None])
        else:
            piece = part(inputs, start, start + size)
            o, state = call(op, piece, initial_state=state, return_state=True, backend=backend, **options)
            outputs.append(o)
        start += size
    leaves = {**inputs, **{f"state.{name}": x for name, x in roots.items()}}
    loss = loss_of(op, torch.cat(outputs, dim=1), state)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("pieces", [(T,), (1, T - 1), (6, 5, 6), (4, 4, 0, 8, 1)], ids=str)
@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_gradients_through_states_are_those_of_the_whole(op, backend, pieces):
    expected = gradients_of(op, "reference", (T,))
    for name, grad in gradients_of(op, backend, pieces).items():
        assert expected[name].abs().max() > 0
        assert_near(grad, expected[name], name=name)


@pytest.mark.parametrize("op", OPS)
def test_gradients_through_steps_are_those_of_the_whole(op):
    expected = gradients_of(op, "reference", (T,))
    for name, grad in gradients_of(op, None, (T,), steps=True).items():
        assert_near(grad, expected[name], name=name)


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_gradients_of_and_by_the_state_are_right(op, backend):
    inputs, state = make_inputs(op, batch=1, time=4), make_state(op, batch=1)
    inputs, roots, _ = leaves_of(op, inputs, state)
    names, state_names = list(inputs), list(roots)

    def function(*values):
        given = dict(zip(names, values[: len(names)], strict=True))
        tensors = dict(zip(state_names, values[len(names) :], strict=True))
        if op == "vla":
            tensors["A"] = (tensors["A"] + tensors["A"].mT) / 2
        start = STATES[op](**tensors, t=state.t)
        o, after = call(op, given, initial_state=start, return_state=True, backend=backend, **options_of(op))
        return (o, *(getattr(after, name) for name in state_names))

    assert torch.autograd.gradcheck(function, (*inputs.values(), *roots.values()), fast_mode=True)


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_a_detached_state_stops_gradients(op, backend):
    inputs = {name: x.requires_grad_() for name, x in make_inputs(op).items()}
    _, state = call(op, part(inputs, 0, 8), return_state=True, backend=backend)
    o = call(op, part(inputs, 8, T), initial_state=state.detach(), backend=backend)
    o.square().sum().backward()
    assert torch.equal(inputs["v"].grad[:, :8], torch.zeros(B, 8, H, DV, dtype=torch.float64))
    assert inputs["v"].grad[:, 8:].abs().min() > 0


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_a_loss_on_the_state_alone_has_gradients(op, backend):
    inputs = {name: x.requires_grad_() for name, x in make_inputs(op).items()}
    _, state = call(op, inputs, return_state=True, backend=backend)
    _, expected = call(op, inputs, return_state=True, backend="reference")
    for name in FIELDS[op][:-1]:
        got, want = (
            torch.autograd.grad(
                getattr(x, name).square().sum(), list(inputs.values()), allow_unused=True, retain_graph=True
            )
            for x in (state, expected)
        )
        for g, w in zip(got, want, strict=True):
            g = torch.zeros(()) if g is None else g
            w = torch.zeros(()) if w is None else w
            assert (g - w).abs().max() <= 1e-12 * w.abs().max()


# --- Packed sequences -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(5, 0, 9, 3), (0, 17), (17, 0), (17,), (1,) * 17, (0, 0, 8, 9, 0)], ids=str)
@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_packed_sequences_each_have_their_state(op, backend, lengths):
    inputs, options = make_inputs(op, batch=1), options_of(op)
    offsets = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    start = make_state(op, batch=len(lengths))
    o, state = call(
        op,
        inputs,
        cu_seqlens=torch.tensor(offsets),
        initial_state=start,
        return_state=True,
        backend=backend,
        **options,
    )
    assert_same_state(op, start, make_state(op, batch=len(lengths)))
    for i, (begin, end) in enumerate(pairwise(offsets)):
        mine = {name: x[i : i + 1] for name, x in tensors_of(op, start).items()}
        got = {name: x[i : i + 1] for name, x in tensors_of(op, state).items()}
        if begin == end:
            assert all(torch.equal(got[name], mine[name]) for name in mine)
            continue
        expected, expected_state = call(
            op,
            part(inputs, begin, end),
            initial_state=STATES[op](**mine),
            return_state=True,
            backend="reference",
            **options,
        )
        assert_near(o[:, begin:end], expected)
        assert_near_state(op, STATES[op](**got), expected_state)


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_an_empty_sequence_lets_gradients_through(op, backend):
    inputs, _, _ = leaves_of(op, make_inputs(op, batch=1), make_state(op))
    state = make_state(op, batch=3)
    roots = {name: x.requires_grad_() for name, x in tensors_of(op, state).items() if name != "t"}
    offsets = torch.tensor([0, 8, 8, T])
    o, after = call(op, inputs, cu_seqlens=offsets, initial_state=state, return_state=True, backend=backend)
    loss = o.sum() + sum(3 * getattr(after, name)[1].sum() for name in roots)
    for x, grad in zip(roots.values(), torch.autograd.grad(loss, list(roots.values())), strict=True):
        assert torch.equal(grad[1], torch.full_like(x[1], 3))


@pytest.mark.parametrize(("op", "backend"), OPS_AND_BACKENDS)
def test_packed_and_padded_calls_can_take_turns(op, backend):
    inputs, more, options = make_inputs(op, batch=1), make_inputs(op, batch=2, time=3, seed=4), options_of(op)
    offsets = torch.tensor([0, 7, T])
    _, state = call(op, inputs, cu_seqlens=offsets, return_state=True, backend=backend, **options)
    o, state = call(op, more, initial_state=state, return_state=True, backend=backend, **options)
    for i, (begin, end) in enumerate(((0, 7), (7, T))):
        whole = {name: torch.cat([inputs[name][:, begin:end], more[name][i : i + 1]], dim=1) for name in inputs}
        expected, expected_state = call(op, whole, return_state=True, backend="reference", **options)
        assert_near(o[i : i + 1], expected[:, -3:])
        got = {name: x[i : i + 1] for name, x in tensors_of(op, state).items()}
        assert_near_state(op, STATES[op](**got), expected_state)
