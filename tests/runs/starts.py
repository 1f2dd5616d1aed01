"""Several processes that begin the same thing at the same moment."""

import multiprocessing
from collections.abc import Callable

from varla.runs.folder import RunError


def together(start: Callable[[int], object], count: int) -> list[int]:
    """The processes 0 to count - 1 that `start` returned in. All others were refused because of the one that did."""
    context = multiprocessing.get_context("fork")
    barrier, ends = context.Barrier(count), context.Queue()

    def process(i: int) -> None:
        barrier.wait()
        try:
            start(i)
        except RunError as error:
            ends.put((i, str(error)))
        except BaseException as error:
            ends.put((i, repr(error)))
        else:
            ends.put((i, None))

    children = [context.Process(target=process, args=(i,)) for i in range(count)]
    for child in children:
        child.start()
    found = dict(ends.get(timeout=120) for _ in children)
    for child in children:
        child.join()
    for message in found.values():
        assert message is None or "is being trained by another process" in message or "already holds a run" in message
    return [i for i, message in found.items() if message is None]
