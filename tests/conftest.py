import gc
import os
from importlib.util import find_spec

# Two test processes of two threads each on two cores take ten times as long as two of one thread, and numbers differ in
# their last bits with the number of threads: one for all, also for the processes that tests start.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"  # no test looks anything up
# Some virtual machines announce AMX and then refuse its instructions: bfloat16 products would end the process.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")
os.environ["COLUMNS"] = "200"  # tables are as wide as this, whatever the terminal

import pytest
import torch

torch.set_num_threads(1)
gc.disable()  # until all tests are collected: modules and tests come by the thousand, and none of them goes

if not torch.cuda.is_available():  # kernels run in Triton's interpreter, which must be known before it is imported
    os.environ["TRITON_INTERPRET"] = "1"
    if find_spec("triton"):
        from tests.interpreter import quicken

        quicken()

# Tests that take longest. They run first: one of them at the end would leave all processes but one idle.
LONGEST = (
    "two_hundred_thousand_steps",
    "compiled_forward_and_decode",
    "at_8192_tokens",
    "killed_at_twenty",
    "two_processes",
    "compiled_in_one_graph_forward_and_backward",
    "cells_run_in_order",
    "leave_small_records_and_repeat",
    "sharding_that_would_not_happen",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: not any(name in item.nodeid for name in LONGEST))


def pytest_collection_finish() -> None:
    gc.freeze()  # nor are they looked through later
    gc.enable()


def pytest_sessionfinish() -> None:
    gc.unfreeze()
