import torch

# Two test processes of two threads each on two cores take ten times as long as two of one thread; and the tensors here
# are too small for a second thread to help one process alone.
torch.set_num_threads(1)
