"""Linear attention and the delta rule: chunk form, packing, steps and states against their reference loops."""

import pytest
import torch

import varla
from tests.ops.cases import LENGTHS, assert_same, error, randn, with_gradients
from varla.ops.chunk import op as chunk_op
from varla.ops.decayed_delta_rule import CHANNEL_LOOP_TOKENS

B, H, D, DV = 2, 2, 5, 4
FEATURES = [{"feature_map": "elu1"}, {"feature_map": "identity"}]


def linear_case(T, rows=B, batch=B):
    inputs = [randn(batch, T, H, d, seed=i) for i, d in enumerate((D, D, DV))]
    state = varla.LinearAttentionState(
        randn(rows, H, DV, D, seed=7), randn(rows, H, D, seed=8).abs(), torch.arange(rows)
    )
    return varla.linear_attention, inputs, state


def delta_case(T, rows=B, batch=B):
    inputs = [randn(batch, T, H, d, seed=i) for i, d in enumerate((D, D, DV))]
    inputs.append(randn(batch, T, H, seed=5).sigmoid())
    return varla.delta_rule, inputs, varla.DeltaRuleState(randn(rows, H, DV, D, seed=7), torch.arange(rows))


def decayed_case(T, rows=B, batch=B):
    inputs = [randn(batch, T, H, d, seed=i) for i, d in enumerate((D, D, DV))]
    gate = 3 * randn(batch, T, H, seed=5)
    gate[:, 4::9] -= 40  # now and then the gate closes altogether
    inputs.append(torch.nn.functional.logsigmoid(gate))
    return varla.decayed_delta_rule, inputs, varla.DeltaRuleState(randn(rows, H, DV, D, seed=7), torch.arange(rows))


def channel_case(T, rows=B, batch=B):
    """The same with a gate for every value channel."""
    operator, inputs, state = decayed_case(T, rows, batch)
    gate = 3 * randn(batch, T, H, DV, seed=5)
    gate[:, 4::9, :, 1] -= 40
    return operator, [*inputs[:3], torch.nn.functional.logsigmoid(gate)], state


LINEAR = [{}, {"normalizer": False}, {"eps": 2.0}]
DELTA = [{}, {"normalize_query": False}, {"normalize_key": False, "scale": 1.0}, {"scale": 0.3}]
CASES = [(linear_case, options) for options in LINEAR] + [(delta_case, options) for options in DELTA]


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: f["feature_map"])
@pytest.mark.parametrize(("case", "options"), CASES)
@pytest.mark.parametrize("T", LENGTHS)
def test_chunk_equals_the_reference(T, case, options, features):
    operator, inputs, state = case(T)
    if case is delta_case and options.get("normalize_key") is False:
        inputs[1] = inputs[1] / 4  # unnormalised keys must keep |k|^2 beta below 2, or the recurrence explodes
    options = {**options, **features}
    wanted = with_gradients(operator, inputs, state, backend="reference", **options)
    for chunk_size in (None, 1, 7, 20, 64):
        got = with_gradients(operator, inputs, state, backend="chunk", chunk_size=chunk_size, **options)
        assert_same(got, wanted, tolerance=1e-12)


@pytest.mark.parametrize("case", [decayed_case, channel_case])
@pytest.mark.parametrize("T", LENGTHS)
def test_decayed_chunk_equals_the_reference(T, case):
    operator, inputs, state = case(T)
    for options in ({}, {"normalize_key": False}):
        inputs[1] = inputs[1] / 4 if options else inputs[1]
        wanted = with_gradients(operator, inputs, state, backend="reference", **options)
        for chunk_size in (None, 1, 7, 20, 64):
            assert_same(
                with_gradients(operator, inputs, state, backend="chunk", chunk_size=chunk_size, **options), wanted
            )


@pytest.mark.parametrize("shut", [-2e4, -float("inf")])
def test_a_gate_that_shuts_completely_costs_no_precision(shut):
    operator, inputs, _ = decayed_case(32)
    inputs[3] = torch.full_like(inputs[3], -0.01)
    inputs[3][:, 9] = shut
    wanted = operator(*inputs, backend="reference")
    got = operator(*(x.float() for x in inputs), backend="chunk")
    assert error(got, wanted) <= 1e-5


def test_equal_gates_of_all_channels_are_one_gate():
    operator, inputs, state = decayed_case(40)
    wanted = with_gradients(operator, inputs, state, backend="reference")
    spread = inputs[3][..., None].expand(*inputs[3].shape, DV)
    for backend in ("reference", "chunk"):
        got = with_gradients(operator, [*inputs[:3], spread], state, backend=backend)
        got["d 3"] = got["d 3"].sum(-1)
        assert_same(got, wanted)


@pytest.mark.parametrize(("T", "form"), [(CHANNEL_LOOP_TOKENS, "reference"), (CHANNEL_LOOP_TOKENS + 1, "chunk")])
def test_what_auto_takes_for_a_gate_per_channel(T, form):
    operator, inputs, state = channel_case(T)
    got, wanted = (operator(*inputs, initial_state=state, backend=backend) for backend in ("auto", form))
    assert torch.equal(got, wanted)


def test_a_state_that_does_not_fit_a_gate_per_channel_is_named_by_its_own_shape():
    operator, inputs, _ = channel_case(4)
    wrong = varla.DeltaRuleState(randn(B, H, DV + 1, D, seed=7), torch.arange(B))
    with pytest.raises(ValueError, match=r"initial_state.S must have shape \[B, H, Dv, D\] = \[2, 2, 4, 5\]"):
        operator(*inputs, initial_state=wrong, backend="chunk")


@pytest.mark.parametrize("budget", [1, 40, 4096])
@pytest.mark.parametrize("case", [linear_case, delta_case, decayed_case, channel_case])
def test_packed_equals_the_reference(monkeypatch, case, budget):
    monkeypatch.setattr(chunk_op, "SEGMENT_TOKENS", budget)
    lengths = [20, 0, 41, 1, 67, 3]
    operator, inputs, state = case(sum(lengths), rows=len(lengths), batch=1)
    cu_seqlens = torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    wanted = with_gradients(operator, inputs, state, backend="reference", cu_seqlens=cu_seqlens)
    got = with_gradients(operator, inputs, state, backend="chunk", chunk_size=16, cu_seqlens=cu_seqlens)
    assert_same(got, wanted)
    for i, length in enumerate(lengths):
        here = slice(int(cu_seqlens[i]), int(cu_seqlens[i]) + length)
        alone = type(state).of(x[i : i + 1] for x in state.tensors().values())
        o = operator(*(x[:, here] for x in inputs), initial_state=alone, backend="reference")
        assert_same({"o": got["o"][:, here]}, {"o": o})


@pytest.mark.parametrize(
    ("case", "step"),
    [
        (linear_case, varla.linear_attention_step),
        (delta_case, varla.delta_rule_step),
        (decayed_case, varla.decayed_delta_rule_step),
        (channel_case, varla.decayed_delta_rule_step),
    ],
)
def test_steps_equal_the_whole(case, step):
    operator, inputs, state = case(33)
    wanted, final = operator(*inputs, initial_state=state, return_state=True, backend="chunk")
    outputs = []
    for t in range(33):
        o, state = step(*(x[:, t] for x in inputs), state)
        outputs.append(o)
    assert_same({"o": torch.stack(outputs, 1), **state.tensors()}, {"o": wanted, **final.tensors()})


@pytest.mark.parametrize("case", [linear_case, delta_case, decayed_case, channel_case])
def test_gradcheck(case):
    operator, inputs, _ = case(9)
    leaves = [x[:1, :, :1].clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(lambda *x: operator(*x, backend="chunk", chunk_size=4), leaves)


def test_linear_attention_is_the_causal_kernel_average():
    """o_t is the average of the values up to t, weighted by phi(q_t) . phi(k_s)."""
    _, (q, k, v), _ = linear_case(30)
    phi = [torch.nn.functional.elu(x) + 1 for x in (q, k)]
    weights = torch.einsum("bthd,bshd->bhts", *phi).tril()
    wanted = torch.einsum("bhts,bshe->bthe", weights / weights.sum(-1, keepdim=True), v)
    assert_same({"o": varla.linear_attention(q, k, v, backend="chunk")}, {"o": wanted})


def test_the_delta_rule_with_full_strength_recalls_the_newest_pair():
    _, (_, k, v, beta), _ = delta_case(30)
    o = varla.delta_rule(k, k, v, torch.ones_like(beta), scale=1.0, backend="chunk")
    assert_same({"o": o}, {"o": v})


def test_vla_with_a_fixed_isotropic_A_is_the_delta_rule_with_full_strength():
    _, (q, k, v, beta), _ = delta_case(30)
    fixed = varla.vla(q, k, v, k, feature_map="identity", normalizer=False, update_penalty=False, backend="chunk")
    delta = varla.delta_rule(q, k, v, torch.ones_like(beta), normalize_query=False, scale=1.0, backend="chunk")
    assert_same({"o": fixed}, {"o": delta})
