"""Shared by all tests: two threads at most, so that results and times do not depend on the machine's size."""

import torch

torch.set_num_threads(2)
