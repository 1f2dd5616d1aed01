"""A reader of pages as text: elements that are closed in order, ids, links, and what would be loaded."""

from html.parser import HTMLParser

VOID = {"meta", "link", "br", "input"}


class Reader(HTMLParser):
    """What a page consists of."""

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


def read(text):
    """The page's Reader; every element must be closed, every id be there once, every link lead to an id."""
    reader = Reader()
    reader.feed(text)
    assert text.lstrip().startswith("<!doctype html>")
    assert reader.faults == []
    assert reader.open == []
    assert len(set(reader.ids)) == len(reader.ids)
    assert {link.removeprefix("#") for link in reader.links} <= set(reader.ids)
    return reader
