"""Tokens spread over two and four ranks: outputs, states and all gradients are those of one process."""

import pytest
import torch
import torch.distributed as dist

import varla
from tests.ops.cases import error, randn
from tests.ops.operators import call, make_inputs, make_state
from tests.ranks import on_ranks
from varla.ops.memory import ranks as memory_ranks
from varla.ops.split import Split

T = 29
# Packed: a sequence on all ranks, one on two, short ones, an empty one within a rank and one at the end.
PACKED = (0, 3, 8, 21, 21, 25, 29, 29)
ALL_ON_ONE = (0, 29)
NO_REFRESH = {"refresh_every": None}
# Operator and options.
CASES = {
    "vla": ("vla", {}),
    "vla, refresh 4, projection": ("vla", {"refresh_every": 4, "refresh": 0.1, "gain": "projection"}),
    "vla, no refresh, raw": ("vla", {**NO_REFRESH, "gain": "raw", "lambda0": 1.0}),
    "vla, A fixed": ("vla", {"update_penalty": False}),
    "vla, loop": ("vla", {"backend": "reference"}),
    "gated_vla": ("gated_vla", {**NO_REFRESH, "normalizer": False}),
    "gated_vla, refresh": ("gated_vla", {"refresh_every": 5}),
    "forgetting_vla": ("forgetting_vla", {"lambda0": 1.0}),
    "forgetting_vla, beat": ("forgetting_vla", {"lambda0": 1.0, "forget_at": "beat"}),
    "forgetting_vla, long beat": ("forgetting_vla", {"forget_at": "beat", "beat": 16}),
    "mesa": ("mesa", {}),
    "delta_rule": ("delta_rule", {}),
    "gated_delta_rule": ("gated_delta_rule", {}),
    "decayed_delta_rule": ("decayed_delta_rule", {}),
    "linear_attention": ("linear_attention", {}),
}
LAYOUTS = {"rows": None, "packed": PACKED, "one sequence": ALL_ON_ONE}


def case(name, layout, dtype, state):
    """(operator, options, inputs, state, offsets) of a test."""
    op, options = CASES[name]
    offsets = LAYOUTS[layout]
    rows = 2 if offsets is None else len(offsets) - 1
    inputs = make_inputs(op, batch=2 if offsets is None else 1, time=T, heads=2, dtype=dtype)
    return op, options, inputs, make_state(op, batch=rows, heads=2, dtype=dtype) if state else None, offsets


def losses(o, after, ended, own):
    """A random loss on outputs, and on the states of the sequences that have `ended`: rows of all of them."""
    loss = (o * own(randn(o.shape[0], T, *o.shape[2:], seed=90)).to(o)).sum()
    for i, (name, x) in enumerate(after.tensors().items()):
        if name != "t":
            weights = randn(64, *x.shape[1:], seed=91 + i).to(x)
            loss = loss + sum((x[row] * weights[index]).sum() for row, index in ended)
    return loss


def measured(name, layout, dtype, state, split=None):
    """Outputs, states of ended sequences by number, and gradients by name; of this rank's tokens with a split."""
    op, options, inputs, begun, offsets = case(name, layout, dtype, state)

    def own(x):
        return x if split is None else split.own(x)

    leaves = {key: own(x).clone().requires_grad_() for key, x in inputs.items()}
    if begun is not None:
        begun = begun.map(lambda x: x.clone().requires_grad_() if x.is_floating_point() else x)
    packing = split
    if split is None and offsets is not None:
        packing = torch.tensor(offsets)
    o, after = call(op, leaves, initial_state=begun, return_state=True, cu_seqlens=packing, **options)
    rows = range(after.t.shape[0])
    if offsets is None:
        ended = [(i, i) for i in rows] if split is None or split.rank == split.ranks - 1 else []
    else:
        sequences = rows if split is None else split._sequences
        ended = [(i, j) for i, j in zip(rows, sequences, strict=True) if split is None or offsets[j + 1] <= split.end]
    losses(o, after, ended, own).backward()
    initial = {} if begun is None else {key: x for key, x in begun.tensors().items() if key != "t"}
    states = {j: {key: x[i].detach() for key, x in after.tensors().items()} for i, j in ended}
    return o.detach(), states, gradients(leaves), gradients(initial)


def gradients(leaves):
    """Gradients by name. A without an update does not depend on u."""
    return {f"d {key}": torch.zeros_like(x) if x.grad is None else x.grad for key, x in leaves.items()}


KEYS = [
    (name, layout, dtype, state)
    for name in CASES
    for layout in LAYOUTS
    for dtype, state in ((torch.float64, True), (torch.float32, False))
]


def all_on_this_rank():
    found = {}
    for key in KEYS:
        split = Split(dist.group.WORLD, bounds(dist.get_world_size()), LAYOUTS[key[1]])
        found[key] = measured(*key, split)
    return found


def bounds(ranks):
    """Pieces of different lengths, one of them shorter than a sequence and a chunk, one of a single token."""
    return {2: (0, 12, T), 4: (0, 9, 10, 22, T)}[ranks]


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    return on_ranks(request.param, all_on_this_rank)


def joined(parts):
    """Outputs, states and gradients of the whole, by name, from those of all ranks or of one process."""
    found = {"o": torch.cat([part[0] for part in parts], 1)}
    for part in parts:
        for j, state in part[1].items():
            for name, x in state.items():
                assert (j, name) not in found  # each sequence ends on one rank
                found[j, name] = x
    for name in parts[0][2]:
        found[name] = torch.cat([part[2][name] for part in parts], 1)
    for name in parts[0][3]:  # each rank has the gradient of its own loss: the sum is that of the whole
        x = sum(part[3][name] for part in parts)
        found[f"initial {name}"] = (x + x.mT) / 2 if name == "d A" else x
    return found


@pytest.mark.parametrize("key", KEYS, ids=lambda key: "-".join(map(str, key)).replace("torch.", ""))
def test_as_on_one_process(ranks, key):
    found, alone = joined([rank[key] for rank in ranks]), joined([measured(*key)])
    assert found.keys() == alone.keys()
    if key[2] == torch.float64:
        for name, x in alone.items():
            assert error(found[name], x) < 1e-11, name
        return
    # In float32 both round. Where strengths are large beside lambda0, one process is off by more than 1e-5, too.
    name, layout, _, state = key
    exact = joined([measured(name, layout, torch.float64, state)])
    for name, x in exact.items():
        ours, theirs = error(found[name], x), error(alone[name], x)
        assert ours < max(1e-5, 2 * theirs), (name, theirs)


def exchanged(T):
    """Bytes that this rank sends in a forward and a backward of T tokens, by operator."""
    found, gather, reduce = {}, dist.all_gather, dist.all_reduce

    def counted(name, function, place):
        def call(*arguments, **options):
            found[name] += arguments[place].nbytes
            return function(*arguments, **options)

        return call

    split = Split.even(dist.group.WORLD, T)
    for name in ("vla", "gated_vla", "forgetting_vla", "mesa", "gated_delta_rule", "linear_attention"):
        found[name] = 0
        dist.all_gather, dist.all_reduce = counted(name, gather, 1), counted(name, reduce, 0)
        inputs = {key: split.own(x).requires_grad_() for key, x in make_inputs(name, time=T).items()}
        call(name, inputs, cu_seqlens=split).sum().backward()
        dist.all_gather, dist.all_reduce = gather, reduce
    return found


def some_need_gradients(names):
    """Gradients of these inputs alone: every rank must take part in the backward, whatever it has to send."""
    split, found = Split.even(dist.group.WORLD, 12, torch.tensor([0, 4, 12])), {}
    for name in names:
        inputs = make_inputs("gated_vla", batch=1, time=12)
        own = {key: split.own(x).requires_grad_(key == name) for key, x in inputs.items()}
        call("gated_vla", own, cu_seqlens=split, **NO_REFRESH).square().sum().backward()
        found[name] = own[name].grad
    return found


def test_what_is_exchanged_does_not_depend_on_the_length():
    short, long = ([rank.copy() for rank in on_ranks(2, exchanged, T)] for T in (10, 130))
    assert short == long
    # The map of S alone: F [D, D], G [Dv, D] and a number a row and head, forward; the same of both ranks, backward.
    B, H, D, Dv = 2, 3, 4, 5
    assert short[0]["gated_delta_rule"] == 3 * 8 * B * H * (D * D + Dv * D + 1)


def test_gradients_of_a_single_input():
    names = ("q", "k", "v", "u", "beta", "decay", "strength")
    ranks = on_ranks(3, some_need_gradients, names)
    inputs = {key: x.requires_grad_() for key, x in make_inputs("gated_vla", batch=1, time=12).items()}
    call("gated_vla", inputs, cu_seqlens=torch.tensor([0, 4, 12]), **NO_REFRESH).square().sum().backward()
    for name in names:
        assert error(torch.cat([rank[name] for rank in ranks], 1), inputs[name].grad) < 1e-11, name


def one_rank(T):
    """(outputs, state) of a group of one rank, and without a split."""
    split = Split.even(dist.group.WORLD, T)
    inputs = make_inputs("forgetting_vla", time=T)
    return [
        call("forgetting_vla", inputs, return_state=True, cu_seqlens=packing, forget_at="beat")
        for packing in (split, None)
    ]


def test_one_rank_has_the_same_bits_as_none():
    ((found, plain),) = on_ranks(1, one_rank, 33)
    assert torch.equal(found[0], plain[0])
    assert all(torch.equal(x, y) for x, y in zip(found[1].tensors().values(), plain[1].tensors().values(), strict=True))


def test_a_decay_for_every_channel_is_refused():
    (said, again) = on_ranks(2, refusal)
    assert said == again
    assert "a decay for every value channel cannot be split over ranks" in said


def refusal():
    split, (q, k, v) = Split.even(dist.group.WORLD, 4), randn(3, 1, 2, 1, 4, seed=0)
    with pytest.raises(ValueError, match="channel") as error:
        varla.decayed_delta_rule(q, k, v, -v.abs(), cu_seqlens=split)
    return str(error.value)


def by_kernels():
    """Errors of the kernels over ranks, in Triton's interpreter, against one process in float64; by name."""
    found = {}
    for name, options in (("gated_vla", NO_REFRESH), ("gated_delta_rule", {})):
        inputs = make_inputs(name, batch=1, time=80, heads=1, dim=16, dim_v=16, dtype=torch.float32)
        split = Split(dist.group.WORLD, (0, 67, 80))
        own = {key: split.own(x).requires_grad_() for key, x in inputs.items()}
        o = call(name, own, cu_seqlens=split, backend="triton", **options)
        o.square().sum().backward()
        exact = {key: x.double().requires_grad_() for key, x in inputs.items()}
        wanted = call(name, exact, **options)
        wanted.square().sum().backward()
        found[name] = {key: error(x.grad, split.own(exact[key].grad)) for key, x in own.items()}
        found[name]["o"] = error(o, split.own(wanted))
    return found


def test_the_kernels_run_over_ranks():
    pytest.importorskip("triton")
    for rank in on_ranks(2, by_kernels):
        for name, errors in rank.items():
            assert max(errors.values()) < 1e-4, (name, errors)


def test_more_values_than_a_kernel_takes():
    """The maps of S then take two calls: with the same numbers."""
    for one, two in on_ranks(2, in_two_calls, ("gated_delta_rule", "rows", torch.float64, True)):
        assert error(two, one) < 1e-13


def in_two_calls(key):
    split, found = Split.even(dist.group.WORLD, T), []
    for most in (256, 4):
        memory_ranks.MOST_ROWS = most
        found.append(measured(*key, split)[2]["d k"])
    return found
