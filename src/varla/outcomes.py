"""How a run stands or has ended, as records and sweeps say it, and the exit codes that say it to other processes."""

WAITING, RUNNING = "waiting", "running"
FINISHED, DIVERGED, INTERRUPTED, FAILED = "finished", "diverged", "interrupted", "failed"
EXIT_CODES = {FINISHED: 0, FAILED: 1, DIVERGED: 3, INTERRUPTED: 130}
EXIT_USAGE = 2  # nothing was run: the command or its settings are wrong
