"""`python -m varla.cli`, and `python -m varla`, which imports this module."""

from varla.cli import app

app()
