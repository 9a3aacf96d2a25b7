"""How a run is spread over GPUs and machines."""

from __future__ import annotations

from dataclasses import dataclass

from lamina.fields import check, flag

# fairseq's names for ways to add gradients up. Here there is one, whose result is the same; and sharding.
SHARDED = "fully_sharded"
DDP_BACKENDS = ("c10d", "no_c10d", "legacy_ddp", "pytorch_ddp", SHARDED)

GLOO = "gloo"
MAX_TIMEOUT = 7 * 24 * 60


@dataclass(frozen=True, kw_only=True)
class RanksConfig:
    """Many GPUs."""

    world_size: int | None = flag(None, "processes in total, one per GPU; every visible GPU of this machine if left out. With "
                                        "--cpu it starts that many processes", name="distributed-world-size")
    rank: int = flag(0, "number of this process, or of the first one started on this machine",
                     name="distributed-rank", needs="distributed-init-method")
    init_method: str | None = flag(None, "where processes that were started by hand meet, such as tcp://HOST:PORT; torchrun "
                                         "and Slurm need none", name="distributed-init-method", metavar="URL")
    port: int = flag(-1, "port on which processes started by Slurm meet; chosen by the job's number if left out",
                     name="distributed-port")
    timeout: float = flag(10.0, "minutes that a rank waits for another before it gives up: more than writing a checkpoint or "
                                "preparing the first update takes", name="distributed-timeout", metavar="MINUTES")
    device: int | None = flag(None, "GPU of this process on its machine; known automatically under torchrun and Slurm",
                              name="device-id", aliases=("local-rank",))
    starts_itself: bool = flag(True, "start one process for each visible GPU", name="distributed-spawn",
                               off_aliases=("distributed-no-spawn",))
    backend: str = flag("nccl", "how GPUs talk to each other; gloo is slow and lets several ranks share a GPU, for tests",
                        name="distributed-backend", choices=("nccl", GLOO))
    ddp_backend: str = flag("c10d", f"accepted as in fairseq, all with the same result; {SHARDED} means --fsdp",
                            choices=DDP_BACKENDS)
    bucket_cap_mb: int = flag(25, "gradients travel in pieces of about this many megabytes")
    fsdp: bool = flag(False, "shard weights, gradients and the optimizer's state over the ranks (FSDP2), for models that do "
                             "not fit on one GPU", aliases=("fully-sharded",))

    fsdp_size: int | None = flag(None, "with --fsdp, ranks that share one copy of the weights, such as those of a machine; "
                                       "other machines have copies of their own, and gradients are summed between them; all "
                                       "ranks if left out")

    # None: training/resharding.py chooses. No checkpoint depends on it.
    reshards: bool | None = flag(None, "with --fsdp, give a layer's gathered weights back when it has run; "
                                       "--no-reshard-after-forward keeps whole weights on each GPU, in the run's precision, "
                                       "and shards the rest: updates are captured then. If left out, weights are kept where "
                                       "that takes at most a quarter of the GPU's memory", name="reshard-after-forward")

    def __post_init__(self) -> None:
        check(self.reshards is None or self.is_sharded,
              f"--{'' if self.reshards else 'no-'}reshard-after-forward has no effect without --fsdp. Add it, or leave it out.")
        check(self.reshards is not False or self.fsdp_size is None,
              "--no-reshard-after-forward keeps whole weights on each GPU, and --fsdp-size shares them among some. Leave one "
              "of them out.")
        check(self.fsdp_size is None or self.fsdp_size >= 1, f"--fsdp-size is {self.fsdp_size}; it must be at least 1.")
        check(self.fsdp_size is None or self.is_sharded, "--fsdp-size has no effect without --fsdp. Add it, or leave it out.")
        check(self.world_size is None or self.world_size >= 1,
              f"--distributed-world-size is {self.world_size}; it must be at least 1.")
        check(self.init_method is None or self.world_size is not None,
              "--distributed-init-method needs --distributed-world-size: the number of processes on all machines.")
        check(self.world_size is None or 0 <= self.rank < self.world_size,
              f"--distributed-rank is {self.rank}; with --distributed-world-size {self.world_size} it must lie in "
              f"[0, {self.world_size}).")
        check(0 < self.timeout <= MAX_TIMEOUT, f"--distributed-timeout is {self.timeout}; it must be above 0, and at most "
                                               f"{MAX_TIMEOUT} minutes.")
        check(self.bucket_cap_mb >= 1, f"--bucket-cap-mb is {self.bucket_cap_mb}; it must be at least 1.")

    def num_shards(self, num_ranks: int) -> int:
        """Ranks that share one copy of the weights."""
        if not self.is_sharded:
            return 1
        size = self.fsdp_size or num_ranks
        check(num_ranks % size == 0, f"--fsdp-size is {size}, and {num_ranks} ranks cannot be split into groups of that "
                                     f"size. Choose one that divides {num_ranks}.")
        return size

    @property
    def is_sharded(self) -> bool:
        return self.fsdp or self.ddp_backend == SHARDED
