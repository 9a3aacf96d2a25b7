"""Where a process stands, from the environment that launchers leave and from fairseq's flags."""

import math
import time

import pytest

from lamina.cli import main
from lamina.config.ranks_options import RanksConfig
from lamina.distributed.launch import Place, find_place, first_host, joined, num_to_start, own_gpu
from lamina.errors import ConfigError, RankError

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "MASTER_ADDR": "node01", "MASTER_PORT": "29500"}
SLURM = {"SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_STEP_NUM_TASKS": "8", "SLURM_JOB_ID": "20007",
         "SLURM_STEP_NODELIST": "gpu[07-08]"}
BY_HAND = RanksConfig(world_size=8, rank=4, init_method="tcp://node01:12345")


@pytest.mark.parametrize(("config", "environ", "place"), [
    (RanksConfig(), {}, Place(0, 1, 0)),
    (RanksConfig(device=2), {}, Place(0, 1, 2)),
    (RanksConfig(), TORCHRUN, Place(5, 8, 1)),
    (RanksConfig(), SLURM, Place(5, 8, 1, "tcp://gpu07:15007")),
    (RanksConfig(port=9218), SLURM, Place(5, 8, 1, "tcp://gpu07:9218")),
    (RanksConfig(), SLURM | TORCHRUN, Place(5, 8, 1)),  # torchrun inside a Slurm job
    (RanksConfig(), {"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Place(0, 1, 0)),  # the job's own shell, without srun
    (BY_HAND, {}, Place(4, 8, 0, "tcp://node01:12345")),
    (BY_HAND, {"LOCAL_RANK": "2", "RANK": "2", "WORLD_SIZE": "4"}, Place(6, 8, 2, "tcp://node01:12345")),
])
def test_place(config, environ, place):
    assert find_place(config, environ) == place


@pytest.mark.parametrize(("config", "environ", "num_gpus", "number"), [
    (RanksConfig(), {}, 0, 1),
    (RanksConfig(), {}, 1, 1),
    (RanksConfig(), {}, 4, 4),
    (RanksConfig(world_size=2), {}, 4, 2),
    (RanksConfig(world_size=1), {}, 4, 1),
    (RanksConfig(world_size=2), {}, 0, 2),  # on processors
    (RanksConfig(starts_itself=False), {}, 4, 1),
    (RanksConfig(), TORCHRUN, 4, 1),
    (RanksConfig(), SLURM, 4, 1),
    (BY_HAND, {}, 4, 4),
    (BY_HAND, {}, 0, 1),
    (RanksConfig(world_size=8, rank=4, init_method="tcp://a:1", starts_itself=False), {}, 4, 1),
])
def test_processes_to_start(config, environ, num_gpus, number):
    assert num_to_start(config, environ, num_gpus) == number


def test_more_processes_than_gpus():
    with pytest.raises(ConfigError, match=r"is 8, but this machine shows 2 GPUs\. Leave it out and multiply --update-freq"):
        num_to_start(RanksConfig(world_size=8), {}, 2)


def test_the_old_launcher_puts_a_word_before_the_command(capsys):
    assert main(["--local_rank=1", "train", "DATA", "--max-tokens", "64", "--print-config"]) == 0
    assert "device-id: 1" in capsys.readouterr().out


def test_gpu_of_a_process():
    assert own_gpu(Place(5, 8, 1), TORCHRUN, 4) == 1
    assert own_gpu(Place(5, 8, 1), SLURM, 4) == 1
    assert own_gpu(Place(5, 8, 1), SLURM, 1) == 0  # --gpus-per-task=1
    with pytest.raises(ConfigError, match="rank 5 would use GPU 1 of its machine, counted from 0, which shows 1"):
        own_gpu(Place(5, 8, 1), TORCHRUN, 1)


@pytest.mark.parametrize(("nodes", "host"), [("node07", "node07"), ("node[07-09,12],other3", "node07"), ("a1,b2", "a1"),
                                             ("gpu-a[3,5]", "gpu-a3")])
def test_first_host(nodes, host):
    assert first_host(nodes) == host


@pytest.mark.parametrize(("options", "message"), [
    ({"world_size": 0}, "must be at least 1"),
    ({"init_method": "tcp://a:1"}, "needs --distributed-world-size"),
    ({"world_size": 2, "rank": 2, "init_method": "tcp://a:1"}, r"must lie in \[0, 2\)"),
    ({"bucket_cap_mb": 0}, "must be at least 1"),
    ({"timeout": 0.0}, "--distributed-timeout is 0.0; it must be above 0"),
    ({"timeout": math.nan}, "--distributed-timeout is nan; it must be above 0"),
    ({"timeout": 1e9}, "at most 10080 minutes"),
])
def test_bad_options(options, message):
    with pytest.raises(ConfigError, match=message):
        RanksConfig(**options)


def test_patience_is_an_option(tmp_path):
    """The other rank never comes."""
    config = RanksConfig(world_size=2, init_method=f"file://{tmp_path / 'meeting'}", timeout=0.01)
    started = time.monotonic()
    with pytest.raises(RankError, match="rank 0 of 2 did not find the others"), joined(config, is_on_gpu=False):
        pass
    assert time.monotonic() - started < 20
    assert RanksConfig().timeout == 10
