"""A stream of tokens through a model: read without end, continued, forked, saved and loaded."""

from varla.session.session import Session

__all__ = ["Session"]
