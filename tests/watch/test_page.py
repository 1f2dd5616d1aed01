"""The page as a file: whole, self-contained, below its limit, and nothing of its data is markup."""

import json
import re

import pytest
import torch

from tests.layers.test_writes import T, make
from varla.layers.writes import Rule, Writes
from varla.watch import LayerTrace, Token, Watched, write
from varla.watch.page import LARGEST

HOSTILE = "</script><script>alert(1)</script>"


def traced(name="gated-vla"):
    layer, x = make(name, {})
    return [LayerTrace(0, name, layer.writes(x))]


def data(text):
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_the_page_holds_everything(tmp_path):
    path = tmp_path / "new" / "page.html"
    write(path, [Token("a", "b")] * T, [Watched("first", traced(), ["c"] * T)])
    text = path.read_text(encoding="utf-8")
    found = data(text)
    assert found["tokens"][0] == {"text": "a", "answer": "b"}
    (model,) = found["models"]
    assert (model["name"], model["says"][0], model["bits"], model["left_out"]) == ("first", "c", 16, 0)
    assert model["layers"][0]["inputs"].keys() == {"k", "v", "u", "beta", "decay", "strength"}
    assert not re.search(r"""(?:src|href)=["'](?!data:)|https?://|@import|url\(""", text)
    assert [each.name for each in path.parent.iterdir()] == ["page.html"]


def test_names_and_tokens_are_text(tmp_path):
    path = tmp_path / "page.html"
    write(path, [Token(HOSTILE, HOSTILE)] * T, [Watched(HOSTILE, traced(), [HOSTILE] * T)])
    text = path.read_text(encoding="utf-8")
    assert HOSTILE not in text
    assert "<script>alert" not in text
    assert data(text)["tokens"][0]["text"] == HOSTILE


@pytest.mark.parametrize("models", [1, 2])
def test_a_large_model_stays_below_the_limit(tmp_path, models):
    x = torch.randn(1, 512, 8, 64)
    layers = [LayerTrace(i, "deltanet", Writes(Rule(), x, x.clone())) for i in range(12)]
    tokens = [Token("␣longer")] * 512
    found = write(tmp_path / "page.html", tokens, [Watched("m", layers, ["␣longer"] * 512)] * models)
    assert (tmp_path / "page.html").stat().st_size < LARGEST
    assert all(bits == 8 and 1 <= len(kept) < 12 for kept, bits in found)
    assert data((tmp_path / "page.html").read_text())["models"][0]["left_out"] == 12 - len(found[0][0])
