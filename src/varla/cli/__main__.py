"""`python -m varla.cli`."""

from varla.cli import app

app()
