"""Shared by all tests: one thread, since small tensors gain nothing from two, and lose much on a busy machine; one width of the
terminal, which parallel workers otherwise take from elsewhere than a single process does."""

import os

import torch

os.environ["COLUMNS"] = "100"
torch.set_num_threads(1)
