"""A disk that is full from a certain size of a file on: a process that may write no larger ones."""

import multiprocessing
import resource
import signal
from collections.abc import Callable


def with_files_up_to(size: int, call: Callable[[], object]) -> Exception | None:
    """What `call` raised, in a process whose files may have so many bytes; None if it returned."""
    context = multiprocessing.get_context("fork")
    ends = context.Queue()

    def process() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write then fails as on a full disk
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
            call()
        except Exception as error:
            ends.put(error)
        else:
            ends.put(None)

    child = context.Process(target=process)
    child.start()
    found: Exception | None = ends.get(timeout=120)
    child.join()
    return found
