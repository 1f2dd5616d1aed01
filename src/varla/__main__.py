"""`python -m varla`: the command `varla`."""

from varla.cli import app

app()
