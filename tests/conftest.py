"""Shared by all tests: one thread, since small tensors gain nothing from two, and lose much on a busy machine.

And strictness: what a CUDA graph or the compiler cannot hold is an error, where users get a notice and a slower run.
"""

import os

import torch

from lamina.cuda_graphs.recorder import STRICT

os.environ[STRICT] = "1"

torch.set_num_threads(1)
