"""The page for users of flash-linear-attention and transformers: what it says is here, is here."""

import inspect
import re

import pytest
import torch

import varla
from tests.docs.pages import DOCS, run_page
from varla.layers import MECHANISMS, Layer, options_of
from varla.models import VarlaForCausalLM

TEXT = (DOCS / "elsewhere.md").read_text(encoding="utf-8")
ROWS = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TEXT.splitlines() if line.startswith("| ")]


def rows(title):
    """The rows of a section's tables, without their heads."""
    section = TEXT.split(f"## {title}\n")[1].split("\n## ")[0]
    return [row for row in ROWS if f"| {row[0]} | {row[1]} |" in section and row[1] != "here"]


@pytest.mark.parametrize("call", sorted(set(re.findall(r"`(varla\.\w+\([^`]*\))`", TEXT))))
def test_calls_of_operators_are_possible(call):
    name, arguments = re.fullmatch(r"varla\.(\w+)\((.*)\)", call).groups()
    known = inspect.signature(getattr(varla, name)).parameters
    given = [each.partition("=")[0].strip() for each in arguments.split(",")]
    assert set(given) <= set(known)
    if "=" not in arguments:
        assert given == list(known)[: len(given)]


@pytest.mark.parametrize("row", [row for row in rows("Operators of flash-linear-attention") if "varla." not in row[1]])
def test_arguments_of_operators_exist(row):
    everything = set().union(*(inspect.signature(f).parameters for f in (varla.vla, varla.delta_rule)))
    for name in re.findall(r"`(\w+)(?:=\w+)?`", row[1]):
        assert name in everything
    if row[1] == "-":
        assert not set(re.findall(r"`(\w+)`", row[0])) & everything


def test_layers_and_their_options_exist():
    found = "".join(row[1] for row in rows("Layers of flash-linear-attention"))
    mechanisms = re.findall(r'build\("([\w-]+)"', found)
    assert mechanisms
    assert set(mechanisms) <= set(MECHANISMS)
    options = {name for kind in MECHANISMS.values() for name in options_of(kind)}
    for name in re.findall(r"`(\w+)=", found):
        assert name in options
    assert list(inspect.signature(Layer.forward).parameters)[1:3] == ["x", "state"]


def test_arguments_of_models_exist():
    known = inspect.signature(VarlaForCausalLM.forward).parameters
    same = [row for row in rows("Models of transformers") if row[0] == row[1]]
    assert len(same) >= 5
    for row in same:
        assert row[0].strip("`") in known
    assert "cu_seqlens" in known


def test_the_state_of_elsewhere_is_ours_transposed():
    """The gated delta rule as a plain loop over S [B, H, D, Dv], with unit queries and keys and scale D ** -0.5."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 2, 6, 2, 8, dtype=torch.float64)
    beta, g = torch.rand(2, 2, 6, 2, dtype=torch.float64).unbind()
    g = -g
    S, outputs = torch.zeros(2, 2, 8, 8, dtype=torch.float64), []
    for t in range(6):
        key, query = (torch.nn.functional.normalize(x[:, t], dim=-1) for x in (k, q))
        S = S * g[:, t].exp()[..., None, None]
        error = (v[:, t] - (S * key[..., None]).sum(-2)) * beta[:, t, :, None]
        S = S + key[..., None] * error[..., None, :]
        outputs.append((S * query[..., None]).sum(-2) * 8**-0.5)
    o, state = varla.delta_rule(q, k, v, beta, decay=g, return_state=True)
    torch.testing.assert_close(o, torch.stack(outputs, 1))
    torch.testing.assert_close(state.S.mT, S)


def test_the_example_runs():
    names: dict = {}
    run_page("elsewhere.md", names)
    assert names["state"].t.tolist() == [15, 15]
