"""Shared by all tests: one thread, since small tensors gain nothing from two, and lose much on a busy machine."""

import torch

torch.set_num_threads(1)
