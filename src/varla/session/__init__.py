"""A stream of tokens through a model: fed for ever, continued, forked, saved and gone on from."""

from varla.session.session import Session

__all__ = ["Session"]
