"""Numbers for kernels, as a run gives them."""

import torch


def taken_rows(whole, places, number):
    """So many rows of the whole, in as many places or more: where each place comes from, and where each row goes."""
    kept = torch.randperm(whole)[:number].sort().values
    taken = torch.full((places,), whole, dtype=torch.int32)
    back = torch.full((whole,), places, dtype=torch.int32)
    taken[:number], back[kept] = kept.int(), torch.arange(number, dtype=torch.int32)
    return taken, back
