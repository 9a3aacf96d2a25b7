"""Shared by all tests: one thread, since small tensors gain nothing from two, and lose much on a busy machine; one width of the
terminal, which parallel workers otherwise take from elsewhere than a single process does; and strictness: what a CUDA graph or
the compiler cannot hold is an error, where users get a notice and a slower run."""

import os

import torch

from lamina.nn.compiling import STRICT

os.environ["COLUMNS"] = "100"
os.environ[STRICT] = "1"
torch.set_num_threads(1)
