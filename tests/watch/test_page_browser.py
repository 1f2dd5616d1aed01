"""The page in Chromium: it shows the layers' own numbers, its controls work, and it fits phones and both themes."""

import numpy as np
import pytest

from tests.browser import needs_chromium, open_page, window  # noqa: F401 - fixtures
from tests.layers.test_writes import OPTIONS, T, make, own_states
from tests.ops.cases import randn
from varla.layers import build
from varla.watch import LayerTrace, Token, Watched, write
from varla.watch import page as pages
from varla.watch.pack import size

pytestmark = needs_chromium

HEAD, LOOKED_AT = 2, (0, 6, 7, 21, T - 1)  # tokens just before and after a beat among them
TOKENS = [Token(f"t{t}", "yes" if t == 3 else None) for t in range(T)]
SAYS = [None, None, None, "no", *["more"] * (T - 4)]
NUMBERS = """([layer, tokens]) => {
  const head = microscope.head(0, layer, 2), list = (x) => x && Array.from(x);
  const readings = Object.fromEntries(Object.entries(head.readings).map(([name, x]) => [name, list(x)]));
  return { readings, cosine: list(head.cosine), error: list(head.error), states: tokens.map((t) => {
    const { S, A } = head.at(t), spectrum = A && list(eigenvalues(A, head.D));
    const answers = tokens.filter((s) => s <= t).map((s) => list(head.answer(head.at(t), s)));
    return { S: list(S), A: list(A), spectrum, answers };
  }) };
}"""


@pytest.fixture
def visit(open_page):  # noqa: F811
    """Open a page when everything is computed."""

    def go(where, **options):
        page = open_page(where, **options)
        ready(page)
        return page

    return go


def ready(page):
    until(page, "document.documentElement.hasAttribute('data-ready') && !drawing && !working")


def until(page, script):
    """Wait until the script is true. (Playwright's own way evaluates text in the page, which the page forbids.)"""
    for _ in range(1000):
        if page.evaluate(script):
            return
        page.wait_for_timeout(20)
    raise TimeoutError(script)


def watched(*cases, name="one"):
    made = [(each, *make(each, options)) for each, options in cases]
    return Watched(name, [LayerTrace(i, each, layer.writes(x)) for i, (each, layer, x) in enumerate(made)], SAYS)


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    """A page in which every mechanism and option is a layer."""
    path = tmp_path_factory.mktemp("all") / "page.html"
    assert write(path, TOKENS, [watched(*OPTIONS)]) == [(list(range(len(OPTIONS))), 16)]
    return path


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two models side by side: one has two layers, the other one."""
    path = tmp_path_factory.mktemp("two") / "page.html"
    write(path, TOKENS, [watched(("gated-vla", {}), ("linear", {}), name="one"), watched(("mesa", {}), name="two")])
    return path


def answer(writes, state, s):
    """What the state of a layer answers for key s."""
    k, S = writes.k[0, s, HEAD], state["S"][HEAD]
    if writes.rule.reads == "SA":
        return S @ state["A"][HEAD] @ k
    return S @ k / (state["z"][HEAD] @ k).clamp(min=1e-4) if writes.rule.reads == "S/z" else S @ k


def near(got, wanted, tolerance=2e-3):
    """Whether numbers agree to the rounding of the page's inputs, against the largest of them."""
    got, wanted = (np.asarray(x, float).ravel() for x in (got, wanted))
    return np.abs(got - wanted).max() <= tolerance * max(1e-3, np.abs(wanted).max())


@pytest.fixture(scope="module")
def numbers(window, everything):  # noqa: F811
    """What the page would show for each of its layers."""
    window.goto(everything.as_uri())
    return [window.evaluate(NUMBERS, [i, list(LOOKED_AT)]) for i in range(len(OPTIONS))]


@pytest.mark.parametrize("i", range(len(OPTIONS)), ids=[str(case) for case in OPTIONS])
def test_the_page_shows_the_layers_own_numbers(numbers, i):
    layer, x = make(*OPTIONS[i])
    own, writes, watching = own_states(layer, x), layer.writes(x), layer.watch(x)
    found = numbers[i]
    for t, shown in zip(LOOKED_AT, found["states"], strict=True):
        assert near(shown["S"], own[t]["S"][HEAD])
        assert (shown["A"] is None) == ("A" not in own[t])
        if shown["A"] is not None:
            assert near(shown["A"], own[t]["A"][HEAD])
            assert near(shown["spectrum"], np.linalg.eigvalsh(own[t]["A"][HEAD])[::-1])
        for s, got in zip(LOOKED_AT, shown["answers"], strict=False):
            wanted, v = answer(writes, own[t], s).detach(), writes.v[0, s, HEAD].detach()
            assert near(got, wanted)
            at, error = s * T + t, float((wanted - v).norm() / v.norm())
            assert abs(found["error"][at] - error) < 5e-3 * max(1, error)
            assert abs(found["cosine"][at] - float(wanted @ v / wanted.norm() / v.norm())) < 5e-3
    for name, values in watching.items():
        assert near(found["readings"][name.replace("k.a", "k·a")], values[0, :, HEAD])


def test_with_8_bits_the_numbers_are_near(visit, tmp_path, monkeypatch):
    cases = [(name, {}) for name in ("gated-vla", "linear", "mesa", "deltanet")]
    model = watched(*cases)
    monkeypatch.setattr(pages, "LARGEST", pages._BESIDE + sum(size(layer, 8) for layer in model.layers))
    assert write(tmp_path / "page.html", TOKENS, [model]) == [([0, 1, 2, 3], 8)]
    page = visit(tmp_path / "page.html")
    assert "rounded to 8 bits" in page.locator(".about").inner_text()
    for i, case in enumerate(cases):
        layer, x = make(*case)
        found = page.evaluate(NUMBERS, [i, [T - 1]])["states"][0]
        assert near(found["S"], own_states(layer, x)[-1]["S"][HEAD], 0.03), case


def test_scrubbing_changes_the_token(visit, two):
    page = visit(two)
    current, summary = page.locator("#tokens [aria-current]"), page.locator("#summary")
    assert current.inner_text().strip() == f"t{T - 1}"
    page.locator("#now").fill("10")
    ready(page)
    assert current.inner_text().strip() == "t10"
    assert summary.inner_text().startswith(f"Token 11 of {T}, “t10”. Of 11 keys so far, one answers")
    assert page.locator("#now").get_attribute("aria-valuetext") == f"token 11 of {T}: t10"
    page.locator("#tokens button").nth(3).click()
    ready(page)
    assert current.inner_text().strip() == "t3"
    assert "the right answer is yes, the model says no. Wrong." in page.locator(".said").first.inner_text()
    page.keyboard.press("ArrowRight")
    ready(page)
    assert current.inner_text().strip() == "t4"
    assert "more" in page.locator(".said").first.inner_text()
    for key, name in (("ArrowLeft", "t3"), ("End", f"t{T - 1}"), ("Home", "t0")):
        page.keyboard.press(key)
        ready(page)
        assert current.inner_text().strip() == name
    page.get_by_role("button", name="Next token").click()
    ready(page)
    assert current.inner_text().strip() == "t1"


def picture(page, selector):
    return page.locator(selector).first.evaluate("canvas => canvas.toDataURL()")


def test_scrubbing_redraws_every_picture(visit, two):
    page = visit(two)
    canvases = [f".{name} canvas" for name in ("recall", "ask", "S", "A", "spectrum", "readings")]
    before = [picture(page, each) for each in canvases]
    page.locator("#now").fill("5")
    ready(page)
    assert all(a != picture(page, each) for a, each in zip(before, canvases, strict=True))


def test_the_map_chooses_token_and_key_and_says_what_it_shows(visit, two):
    page = visit(two)
    canvas = page.locator(".recall canvas").first
    box = canvas.bounding_box()
    left = page.evaluate(f"mapFrame({box['width']}, {T}).left")
    cell = (box["width"] - left) / T
    canvas.click(position={"x": left + 30.5 * cell, "y": 4.5 * cell})
    ready(page)
    assert page.locator("#now-text").inner_text() == f"31 of {T} “t30”"
    assert page.locator("#key-text").inner_text() == f"5 of {T} “t4”"
    text = page.locator(".readout").first.inner_text()
    word, cosine = page.evaluate(f"[WORDS[columns[0].replay.word[4*{T}+30]], columns[0].replay.cosine[4*{T}+30]]")
    assert text.startswith(f"Key of token 5 “t4”, asked after token 31 “t30”: {word} (cosine {cosine:.2f}, error ")
    page.keyboard.press("ArrowDown")
    ready(page)
    assert page.locator("#key-text").inner_text() == f"6 of {T} “t5”"


def test_words_follow_from_cosine_and_error(visit, two):
    page = visit(two)
    word, cosine, error = (
        np.array(page.evaluate(f"Array.from(columns[0].replay.{name})")).reshape(T, T)
        for name in ("word", "cosine", "error")
    )
    for s in range(T):
        held = False
        assert not word[s, :s].any()
        for t in range(s, T):
            wanted = 1 if error[s, t] <= 0.3 else 2 if cosine[s, t] >= 0.8 else 3 if held else 4
            held = held or wanted <= 2
            assert word[s, t] == wanted
    shown = page.locator("#tokens i:first-child").evaluate_all("bars => bars.map((bar) => Number(bar.dataset.word))")
    assert shown == word[:, T - 1].tolist()


def test_layers_and_heads_are_chosen_for_both_models(visit, two):
    page = visit(two)
    assert page.locator("#layer option").all_inner_texts() == ["0 gated-vla, mesa", "1 linear"]
    assert page.locator("#head option").count() == 3
    before = picture(page, ".S canvas")
    page.locator("#head").select_option("2")
    ready(page)
    assert picture(page, ".S canvas") != before
    assert page.locator(".A:visible").count() == 2
    page.locator("#layer").select_option("1")
    ready(page)
    assert page.locator("h2").all_inner_texts() == ["one linear", "two mesa"]
    assert page.locator(".A:visible").count() == 0
    assert "This model has no layer 1" in page.locator("article").nth(1).inner_text()
    assert page.locator(".panels:visible").count() == 1


def test_playing(visit, two):
    page = visit(two)
    page.get_by_role("button", name="Play").click()  # from the end it begins anew
    assert page.locator("#summary").get_attribute("aria-live") == "off"
    until(page, "2 <= chosen.t && chosen.t < 40")
    page.get_by_role("button", name="Pause").click()
    at = page.evaluate("chosen.t")
    page.wait_for_timeout(400)
    assert page.evaluate("chosen.t") == at
    page.locator("h1").click()
    page.keyboard.press("Space")
    until(page, f"chosen.t > {at}")
    page.evaluate(f"go({{ t: {T - 2} }})")
    page.get_by_role("button", name="Play").wait_for()
    assert page.evaluate("chosen.t") == T - 1


def test_the_table_has_the_same_words(visit, two):
    page = visit(two)
    page.locator("#now").fill("4")
    page.locator("details summary").first.click()
    ready(page)
    page.wait_for_selector("tbody tr")
    rows = page.locator("article").first.locator("tbody tr").all_inner_texts()
    words = page.evaluate(f"[0,1,2,3,4].map((s) => WORDS[columns[0].replay.word[s * {T} + 4]])")
    assert [row.split("\t")[:2] for row in rows] == [[f"{s + 1} t{s}", word] for s, word in enumerate(words)]


def test_light_and_dark(visit, two):
    back = "getComputedStyle(document.body).backgroundColor"
    page = visit(two, color_scheme="dark")
    assert page.evaluate(back) == "rgb(20, 23, 26)"
    dark = picture(page, ".S canvas")
    page.get_by_role("button", name="Use light colours").click()
    ready(page)
    assert page.evaluate(back) == "rgb(255, 255, 255)"
    assert picture(page, ".S canvas") != dark
    assert visit(two).evaluate(back) == "rgb(255, 255, 255)"


def chosen(page):
    return page.evaluate("[chosen.layer, chosen.head, chosen.t, chosen.s]")


def test_an_address_chooses_layer_head_token_and_key(visit, two):
    page = visit(f"{two.as_uri()}#layer=1&head=2&token=12&key=4")
    assert chosen(page) == [1, 2, 11, 3]
    assert (page.locator("#layer").input_value(), page.locator("#head").input_value()) == ("1", "2")
    assert page.locator("#now-text").inner_text() == f"12 of {T} “t11”"


@pytest.mark.parametrize(
    "hash", ["", "#", "#token=", "#token=x&key=y", "#layer=7&head=9&token=1e9x", "#token=-3&key=999"]
)
def test_an_address_that_names_nothing_there_does_no_harm(visit, two, hash):
    layer, head, t, s = chosen(visit(two.as_uri() + hash))
    assert (layer, head) == (0, 0)
    assert 0 <= t < T
    assert 0 <= s < T


def test_in_a_frame_it_has_no_heading_and_the_colours_that_it_is_told(visit, open_page, two, tmp_path):  # noqa: F811
    assert visit(two).locator("h1").is_visible()
    (tmp_path / "outer.html").write_text(f'<link rel="icon" href="data:,"><iframe src="{two.as_uri()}"></iframe>')
    page = open_page(tmp_path / "outer.html")
    frame = page.frames[1]
    ready(frame)
    assert not frame.locator("h1").is_visible()
    tell = "theme => document.querySelector('iframe').contentWindow.postMessage(theme, '*')"
    for told, wanted in (
        ({"theme": "dark"}, "dark"),
        ({"theme": "other"}, "dark"),
        (None, "dark"),
        ({"theme": "light"}, "light"),
    ):
        page.evaluate(tell, told)
        until(frame, f"document.documentElement.dataset.theme === '{wanted}'")


@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.parametrize("which", ["everything", "two"])
def test_nothing_is_wider_than_the_screen(visit, request, which, width):
    page = visit(request.getfixturevalue(which), width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for canvas in page.locator("canvas:visible").all():
        assert 60 < canvas.bounding_box()["width"] <= width


def test_everything_has_a_name_for_screen_readers(visit, two):
    page = visit(two)
    nameless = """() => [...document.querySelectorAll("canvas, input, select, button, [role=group]")]
      .filter((each) => each.getClientRects().length && !each.getAttribute("aria-label") && !each.closest("label")
        && !each.textContent.trim()).map((each) => each.outerHTML)"""
    assert page.evaluate(nameless) == []


def test_512_tokens_fit_and_states_are_kept_on_the_way(visit, tmp_path):
    """To show a token, the page runs a few steps from a state that it kept, not all steps from the beginning."""
    layer = build("gated-vla", d_model=64, n_heads=1, head_dim=64)
    trace = LayerTrace(0, "gated-vla", layer.writes(randn(1, 512, 64, seed=0, dtype=layer.q.weight.dtype)))
    write(tmp_path / "page.html", [Token("x")] * 512, [Watched("long", [trace], [None] * 512)])
    assert (tmp_path / "page.html").stat().st_size < 3_000_000
    page = visit(tmp_path / "page.html")
    script = """() => [511, 300, 301, 40, 511].map((t) => {
      const { replay } = columns[0], { step } = Replay.prototype; let steps = 0;
      replay.step = (state) => { steps++; return step.call(replay, state); };
      go({ t }); draw(); return steps; })"""
    assert page.evaluate(script) == [0, 13, 1, 9, 16]
