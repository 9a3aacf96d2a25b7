"""Eight and sixty-four ranks, of which one is there: the whole loop, with collectives that do nothing but are noted down.

What ranks send each other is tested with two and four (test_ranks.py). Here all call the same collectives in the same order
with the same shapes, whatever falls to them, and hold what --plan says.
"""

import json
import multiprocessing

import pytest
from torch import multiprocessing as mp

from fake_rank_work import train_as
from lamina.config.parser import parse, resolve
from lamina.config.train_options import TrainConfig
from lamina.training.run_plan import plan_of
from rank_work import PRELOAD
from tiny import TINY_FLAGS, make_data

FLAGS = (*TINY_FLAGS, "--cpu", "--encoder-layers", "3", "--decoder-layers", "2", "--dropout", "0.1", "--max-tokens", "40",
         "--max-epoch", "2", "--log-format", "none", "--num-workers", "0", "--no-save")
TECHNIQUES = ("--init-type", "admin", "--surfacefusion", "att", "--encoder-layerdrop", "0.3")
KINDS = {"replicated": (), "techniques": TECHNIQUES, "sharded": ("--fsdp", *TECHNIQUES),
         "gathered": ("--fsdp", "--no-reshard-after-forward", *TECHNIQUES),
         "hybrid": ("--fsdp", "--fsdp-size", "4", *TECHNIQUES)}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("many"), num_lines=96)


@pytest.mark.parametrize(("size", "kind"), [(8, "replicated"), (64, "techniques"), (8, "sharded"), (8, "gathered"),
                                            (64, "hybrid")])
def test_all_ranks_call_the_same_collectives_and_hold_what_was_planned(size, kind, data, tmp_path):
    words = [str(data), *FLAGS, *KINDS[kind]]
    own = (0, size - 1)  # the one that writes, and one that is without a batch at an epoch's end
    multiprocessing.set_forkserver_preload(PRELOAD)
    mp.start_processes(train_as, (own, size, words, str(tmp_path)), nprocs=len(own), start_method="forkserver")
    found = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in own]
    assert found[0]["updates"] > 0
    assert found[1]["calls"] == found[0]["calls"]
    assert found[1]["updates"] == found[0]["updates"]
    planned = plan_of(resolve(TrainConfig, parse("lamina train", TrainConfig, "", [
        *words, "--distributed-world-size", str(size)])[0])).memory
    if "--fsdp" not in words:
        assert [found[0][kind] for kind in ("gradients", "optimizer")] == [planned["gradients"], planned["optimizer"]]
        return
    for moments, kind in ((2, "optimizer"), (1, "gradients")):
        gathered = planned[kind] - planned["optimizer"] // 2 if kind == "gradients" else 0  # of two layers at a time
        assert 0 <= found[0][kind] - (planned[kind] - gathered) <= moments * found[0]["row"]
    assert sum("gather" in call[0] for call in found[0]["calls"]) > 20
