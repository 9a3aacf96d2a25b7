"""What the order of batches costs and brings on a CPU: sorted and padded, mixed in flat rows, and a GPU's packed rows.

    OMP_NUM_THREADS=1 python benchmarks/batch_order.py DATA -s en -t ro --max-tokens 1024 --max-update 1000

Three runs of `lamina train` in one process take turns, ten updates each, so that what else the machine does hits all alike.
Time is the process's own (CPU time), of forward, backward and step, by update and by token that is no pad. Flags that this
script does not know go to all three runs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from in_process import endless_shares

import lamina.training.run as run_module
from lamina.config.parser import parse, resolve
from lamina.config.train_options import TrainConfig
from lamina.data.feed import Share
from lamina.threads import settle_threads
from lamina.training.loop import run_updates
from lamina.training.validate import validation_loss

ORDERS = {"length": "length", "mixed": "mixed", "packed": "mixed"}
TURN = 10  # updates
FLAGS = ("--arch tiny --share-all-embeddings --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --lr 0.002 "
         "--warmup-updates 200 --clip-norm 1.0 --log-format none --no-save --cpu --num-workers 0").split()


class Case:
    """One run, and what it took."""

    def __init__(self, name: str, flags: list[str]) -> None:
        given, _ = parse("lamina train", TrainConfig, "", [*FLAGS, *flags, "--batch-order", ORDERS[name]])
        run_module.is_packed = lambda *_: name == "packed"  # which a CPU never chooses
        self.run = run_module.open_run(resolve(TrainConfig, given))
        self.seconds, self.tokens = 0.0, 0
        self._updates = self._train()

    def _train(self) -> Iterator[None]:
        def counted() -> Iterator[Share]:
            for share in endless_shares(self.run):
                self.tokens += sum(batch.num_source_tokens + batch.num_target_tokens for batch in share.batches)
                started = time.process_time()
                yield share
                self.seconds += time.process_time() - started

        run = self.run
        yield from run_updates(run.updater, run.schedule, counted(), run.progress, run.watch, run.config.seed, run.layer_drop)

    def take_turn(self) -> None:
        for _ in range(TURN):
            next(self._updates)

    def figures(self) -> str:
        run, progress = self.run, self.run.progress
        (feed,) = run.feeds.valid.values()
        bits = validation_loss(run.model, feed.batches(), run.config.optimization.criterion)["nll_loss"]
        padding = run.feeds.train(progress.epoch).padding_share(progress.epoch)
        return (f"{progress.updates:7} {bits:9.3f} {1000 * self.seconds / progress.updates:12.1f} "
                f"{1e6 * self.seconds / self.tokens:11.1f} {100 * padding:9.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--max-update", type=int, default=1000)
    parser.add_argument("--every", type=int, default=250, help="updates between rows")
    parser.add_argument("--orders", default="length,mixed,packed")
    arguments, flags = parser.parse_known_args()
    settle_threads()
    with tempfile.TemporaryDirectory() as folder:
        cases = {name: Case(name, [arguments.data, "--save-dir", str(Path(folder, name)), *flags])
                 for name in arguments.orders.split(",")}
        print("order   updates  nll bits  CPU ms/update  CPU us/token  padding %")
        for update in range(TURN, arguments.max_update + 1, TURN):
            for case in cases.values():
                case.take_turn()
            if update % arguments.every == 0 or update == arguments.max_update:
                for name, case in cases.items():
                    print(f"{name:7} {case.figures()}", flush=True)


if __name__ == "__main__":
    main()
