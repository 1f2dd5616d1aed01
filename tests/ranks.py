"""Runs a function on several ranks: processes of this machine that talk over gloo."""

import gc
import multiprocessing
import pickle
import tempfile
import traceback
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

PATIENCE = 300  # seconds for all ranks together, on a busy machine
CONTEXT = multiprocessing.get_context("forkserver")
# Imported once, in the process that all ranks are forked from, and the programs of `tests.warm`.
CONTEXT.set_forkserver_preload(["torch.distributed.fsdp", "varla.lm.training", "tests.ops.operators"])


def on_ranks(count, function, *arguments):
    """What function(*arguments) returns on each of `count` ranks. An exception on one of them is raised here.

    The function is found by its name, so it must be a module's own. It and its arguments are pickled.
    """
    with tempfile.TemporaryDirectory() as folder:
        here, there = zip(*(CONTEXT.Pipe() for _ in range(count)), strict=True)
        ranks = [
            CONTEXT.Process(target=_work, args=(there[rank], Path(folder) / "meet", rank, count, function, arguments))
            for rank in range(count)
        ]
        try:
            for process in ranks:
                process.start()
            return _answers(here, there)
        finally:
            for process in ranks:
                process.kill()
                process.join()


def _answers(here, there) -> list[Any]:
    """The answers of all ranks, by rank. The first failure ends it: other ranks would wait for the one that failed."""
    for end in there:
        end.close()  # so that the death of a rank is the end of its pipe
    answers: dict[Connection, Any] = {}
    while len(answers) < len(here):
        ready = wait([end for end in here if end not in answers], PATIENCE)
        assert ready, f"ranks did not answer within {PATIENCE} seconds"
        for end in ready:
            try:
                fine, answers[end] = pickle.loads(end.recv_bytes())
            except EOFError:
                raise AssertionError(f"rank {here.index(end)} died") from None
            if not fine:
                raise AssertionError(f"rank {here.index(end)}: {answers[end]}")
    return [answers[end] for end in here]


def _work(end, meet, rank, count, function, arguments):
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=count)
        found = function(*arguments)
        gc.collect()  # what holds the group must go before it
        dist.barrier()
        end.send_bytes(pickle.dumps((True, found)))  # by value: `send` would share the memory of a process that ends
        dist.destroy_process_group()
    except BaseException:
        end.send_bytes(pickle.dumps((False, traceback.format_exc())))
