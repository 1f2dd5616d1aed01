"""`python -m varla`: the command `varla`."""

import varla.cli.__main__  # noqa: F401  (importing it runs the command)
