"""Checks of plain arguments: what passes, and that an error says what came, what is allowed and what is nearest."""

import math
import re

import pytest

from varla.arguments import check_count, check_number, refuse_unknown

NAMES = ("mqar", "mqar-ood", "vocab_size", "lambda0")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("mqra", "mqar"), ("MQAR", "mqar"), ("Mqar_OOD", "mqar-ood"), ("vocab-size", "vocab_size"), ("lambda", "lambda0")],
)
def test_the_nearest_name_is_proposed(name, nearest):
    with pytest.raises(ValueError, match=re.escape(f"unknown thing {name!r} here; did you mean {nearest!r}?")):
        refuse_unknown("thing", name, NAMES, where=" here")


def test_nothing_is_proposed_where_nothing_is_near():
    with pytest.raises(ValueError, match=r"^unknown thing 'xyz' \(allowed: mqar, mqar-ood, vocab_size, lambda0\)$"):
        refuse_unknown("thing", "xyz", NAMES)


def test_names_that_are_no_strings_are_refused_as_such():
    with pytest.raises(TypeError, match=r"thing must be a string, got 3 \(int\)"):
        refuse_unknown("thing", 3, NAMES)
    for name in NAMES:
        refuse_unknown("thing", name, iter(NAMES))


@pytest.mark.parametrize(
    ("value", "options", "error", "message"),
    [
        (0, {}, ValueError, "x must be at least 1, got 0"),
        (4, {"least": 5, "because": "4n + 1"}, ValueError, r"x must be at least 5 \(4n \+ 1\), got 4"),
        (2**63, {}, ValueError, r"x must be below 2\*\*63"),
        (1.0, {}, TypeError, r"x must be an integer, got 1.0 \(float\)"),
        (True, {}, TypeError, r"x must be an integer, got True \(bool\)"),
        (None, {}, TypeError, "x must be an integer, got None"),
        ("3", {"none_means": "all"}, TypeError, r"x must be an integer, or None \(all\), got '3'"),
        (0, {"none_means": "all"}, ValueError, r"x must be at least 1, or None \(all\), got 0"),
    ],
)
def test_counts_that_are_refused(value, options, error, message):
    with pytest.raises(error, match=message):
        check_count("x", value, **options)


def test_counts_that_pass():
    check_count("x", 1)
    check_count("x", 0, least=0)
    check_count("x", 2**63 - 1)
    check_count("x", None, none_means="all")


@pytest.mark.parametrize(
    ("value", "options", "error", "message"),
    [
        ("1", {}, TypeError, r"x must be a number, got '1' \(str\)"),
        (False, {}, TypeError, "x must be a number, got False"),
        (math.nan, {"above": 0}, ValueError, "x must be finite, got nan"),
        (math.inf, {}, ValueError, "x must be finite, got inf"),
        (0, {"above": 0}, ValueError, "x must be greater than 0, got 0"),
        (-1e-9, {"least": 0}, ValueError, "x must be at least 0, got -1e-09"),
        (1, {"below": 1}, ValueError, "x must be below 1, got 1"),
        (None, {}, TypeError, "x must be a number, got None"),
        (0, {"above": 0, "or_none": True}, ValueError, "x must be greater than 0, got 0"),
    ],
)
def test_numbers_that_are_refused(value, options, error, message):
    with pytest.raises(error, match=message):
        check_number("x", value, **options)


def test_numbers_that_pass():
    check_number("x", 0, least=0)
    check_number("x", 1e-300, above=0)
    check_number("x", 0.999, least=0, below=1)
    check_number("x", None, above=0, or_none=True)
