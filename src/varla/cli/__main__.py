"""`python -m varla.cli`: the same as `python -m varla`."""

import varla.__main__  # noqa: F401  (importing it runs the command)
