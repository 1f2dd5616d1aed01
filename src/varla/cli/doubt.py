"""Which errors are ours: a check that refuses, or something that nobody foresaw."""

import traceback
from pathlib import Path

import varla

PACKAGE = Path(varla.__file__).parent
DOUBT = " (not a check of varla's own: perhaps a bug; VARLA_DEBUG=1 shows where it comes from)"


def doubt(error: Exception) -> str:
    """What to add to the message of a ValueError or TypeError that no `raise` of varla's made; else nothing.

    Python and its libraries raise the same types for bugs of ours. A wrong setting may be behind it as well, so that
    it is no reason to show everybody a traceback.
    """
    steps = traceback.extract_tb(error.__traceback__)
    if not steps or (PACKAGE in Path(steps[-1].filename).parents and (steps[-1].line or "raise").startswith("raise")):
        return ""
    return DOUBT
