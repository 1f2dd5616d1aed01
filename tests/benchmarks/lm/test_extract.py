"""Markup to text, and documents without repetitions."""

import pytest

from benchmarks.lm.extract import LEAST, Document, decode, html, rest, tidy, without_repetitions


def test_a_page_is_what_a_reader_sees_of_it():
    page = (
        "<html><head><title>no</title><style>p {}</style></head><body><h1>A title</h1><p>One &amp; <i>two</i>,\n three."
        "</p><script>no()</script><ul><li>first</li><li>second</li></ul><pre>  kept\n    as it is</pre></body></html>"
    )
    text = tidy(html(page))
    assert text == "A title\n\nOne & two, three.\n\nfirst\n\nsecond\n\n  kept\n    as it is\n"


def test_restructured_text():
    source = """\
.. _label:

Title
=====

.. toctree::
   :maxdepth: 2

   other/page

.. function:: open(file)
   :noindex:

   See :func:`~os.open`, :ref:`the guide <guide>`, ``code`` and `a link <https://x.org>`_.

.. a comment

.. code-block:: python

   x = 1

**Bold**, as in::

   an example
"""
    assert tidy(rest(source)) == (
        "Title\n\nopen(file)\n\n   See os.open, the guide, code and a link.\n\n   x = 1\n\n"
        "Bold, as in:\n\n   an example\n"
    )


def test_lines_end_in_one_way_and_nothing_is_invisible():
    assert tidy("\ufeffa \r\nb\rc\x00\x0c\n\n\n\nd") == "a\nb\nc\n\nd\n"


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"plain", "plain"),
        ("Grüße".encode(), "Grüße"),
        ("Grüße".encode("latin-1"), "Grüße"),
        (b"a\0b", None),
        (bytes(range(128, 160)), None),
    ],
)
def test_bytes_are_text_or_not(data, text):
    assert decode(data) == text


def test_what_repeats_another_is_dropped():
    lines = [f"line {i} is long enough to be recognised again, wherever it is" for i in range(40)]
    whole = Document("a", "whole", "\n".join(lines[:30]))
    mostly = Document("b", "mostly", "\n".join(lines[10:40]))
    other = Document("b", "other", "\n".join(line.upper() for line in lines[:10]))
    small = Document("b", "small", "x" * (LEAST - 1))
    found = without_repetitions([whole, whole, mostly, other, small])
    assert [document.name for document in found] == ["whole", "other"]
