"""The page as text: complete, valid, escaped, with one copy of the scripts and nothing from outside."""

import re
from html.parser import HTMLParser

import pytest

from reproduction.report import page
from reproduction.report.gather import gather
from reproduction.verdicts import VERDICTS
from tests.reproduction.report import fabricated

VOID = {"meta", "link", "br", "input"}


class Reader(HTMLParser):
    """Elements that are opened and closed in order, ids, and what is loaded."""

    def __init__(self):
        super().__init__()
        self.open, self.ids, self.loaded, self.links, self.faults = [], [], [], [], []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids += [values["id"]] if "id" in values else []
        if tag in ("script", "img", "link", "iframe"):
            self.loaded += [value for name in ("src", "href") if (value := values.get(name))]
        if tag == "a":
            self.links.append(values["href"])
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.faults.append((tag, self.getpos()))


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return page.render(gather(fabricated.ITEMS, fabricated.write(tmp_path_factory.mktemp("reports"))))


@pytest.fixture(scope="module")
def read(text):
    reader = Reader()
    reader.feed(text)
    return reader


def test_elements_are_closed_ids_are_unique_and_links_lead_somewhere(read, text):
    assert text.lstrip().startswith("<!doctype html>")
    assert read.faults == []
    assert read.open == []
    assert len(set(read.ids)) == len(read.ids)
    assert {link.removeprefix("#") for link in read.links} <= set(read.ids)
    assert {"P7-vla-24", "P12-unit", "item-recall", "machines"} <= set(read.ids)


def test_nothing_is_loaded_and_vega_is_there_once(read, text):
    assert read.loaded == ["data:,"]
    assert "default-src 'none'" in text
    assert text.count("window.vegaEmbed=") == 1


def test_text_of_items_is_escaped_and_code_is_marked(text):
    assert "&amp; &lt;nothing&gt; else" in text
    assert "<code>gain=&#34;paper&#34;</code>" in text
    assert "loss is &lt;nan&gt; at step 3" in text


def test_every_claim_says_where_what_how_and_by_which_command(text):
    row = text.split('<tr id="P7-vla-8"')[1].split("</tr>")[0]
    for part in (
        "Fig. 1",
        "vla recalls n = 8 pairs",
        "0.9967 (0.99 to 1)",
        "3 seeds",
        "✓",
        "reproduced",
        "within 0.03",
    ):
        assert part in row
    assert re.sub(r"<[^>]*>", "", row).count("python -m reproduction run recall --preset full") == 1
    assert set(page.SYMBOLS) == set(page.MEANINGS) == set(VERDICTS)
    assert len(set(page.SYMBOLS.values())) == len(VERDICTS)


def test_what_comes_from_the_quick_preset_says_so(text):
    row = text.split('<tr id="P7-softmax-8"')[1].split("</tr>")[0]
    assert '<span class="tag">quick</span>' in row


def test_settings_machines_and_trouble_are_listed(text):
    for part in ("Imaginary 9000", "0123456789", "1 run of preset <code>quick</code> did not finish", "train.steps"):
        assert part in text
    assert "There is no point to draw yet." in text


def test_without_records_the_page_says_so(tmp_path):
    text = page.render(gather([fabricated.RECALL], tmp_path))
    assert "No run is recorded." in text
    assert "0 of 6 runs recorded" in text


def test_json_in_a_script_element_cannot_end_it():
    assert "<" not in page.script_json({"a": "</script><!--"})


@pytest.mark.parametrize(
    ("given", "shown"),
    [("a `b<c` d", "a <code>b&lt;c</code> d"), ("a ` b", "a ` b"), ("x & y", "x &amp; y"), ("", "")],
)
def test_prose(given, shown):
    assert page.prose(given) == shown


def test_the_page_is_written_where_asked(tmp_path):
    path = page.write(gather([fabricated.NORMS], tmp_path), tmp_path / "deep" / "page.html")
    assert path.read_text().rstrip().endswith("</html>")
