import os

import torch

# Two test processes of two threads each on two cores take ten times as long as two of one thread.
if os.environ.get("PYTEST_XDIST_WORKER"):
    torch.set_num_threads(1)
