"""Break a training run in every way that we know, and see that it comes out as if nothing had happened: `make chaos`.

Runs are processes forked from this one, which has imported everything: a life begins in milliseconds, so that a hundred of
them fit into minutes. They train a small model with everything that draws random numbers or keeps state: SurfaceFusion,
Admin, LayerDrop, dropout. What counts as survived: the run ends, and its weights are, to the bit, those of a run that
nobody disturbed.
"""

from __future__ import annotations

import argparse
import mmap
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from lamina.checkpoint.format import load_checkpoint
from lamina.cli import main
from lamina.errors import DamageError
from lamina.training.divergence import DivergenceWatch
from tiny import TINY_FLAGS, make_data

FLAGS = (*TINY_FLAGS, "--cpu", "--num-workers", "0", "--dropout", "0.2", "--surfacefusion", "att", "--sf-gate", "0.8",
         "--init-type", "admin", "--encoder-layers", "2", "--encoder-layerdrop", "0.3", "--save-interval-updates", "2",
         "--keep-interval-updates", "3",
         "--no-epoch-checkpoints", "--log-format", "none")
HANGS_AFTER = 120.0  # seconds that no life of these runs takes


@dataclass
class Row:
    """A line of the table."""

    fault: str
    injected: int = 0
    survived: int = 0
    lost: int = 0  # updates done again
    remark: str = ""


class Life:
    """A forked process that trains; it tells through shared memory how far it has come."""

    def __init__(self, words: list[str], log: Path, prepare: Callable[[], None] = lambda: None) -> None:
        self._told = mmap.mmap(-1, 8)
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            self._live(words, prepare)

    def _live(self, words: list[str], prepare: Callable[[], None]) -> None:
        code = 70
        try:
            output = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(output, 1)
            os.dup2(output, 2)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
            self._tell_updates()
            prepare()
            code = main(words)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)

    def _tell_updates(self) -> None:
        real = DivergenceWatch.add

        def add(watch: DivergenceWatch, *arguments: object) -> None:
            real(watch, *arguments)  # type: ignore[arg-type]
            self._told[:8] = struct.pack("<q", watch.progress.updates)

        DivergenceWatch.add = add  # type: ignore[method-assign, assignment]

    @property
    def updates(self) -> int:
        return struct.unpack("<q", self._told[:8])[0]

    def end(self, seconds: float, number: signal.Signals = signal.SIGKILL) -> int | None:
        """Its exit status if it ends by itself within this time; else it gets the signal (then minus its number)."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.0005)
        os.kill(self.pid, number)
        if number == signal.SIGKILL:
            os.waitpid(self.pid, 0)
            return None
        return self.end(HANGS_AFTER)


class Chaos:
    def __init__(self, folder: Path, seed: int, max_update: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.max_update = max_update
        self.data = make_data(folder / "data", num_lines=40)
        self.rows: list[Row] = []
        started = time.monotonic()
        assert self.live("undisturbed").end(HANGS_AFTER) == 0, (folder / "undisturbed.log").read_text()
        self.whole_seconds = time.monotonic() - started
        self.size = (folder / "undisturbed" / "checkpoint_last.pt").stat().st_size
        self.expected = load_checkpoint(folder / "undisturbed" / "checkpoint_last.pt")

    def words(self, name: str) -> list[str]:
        return ["train", str(self.data), *FLAGS, "--max-update", str(self.max_update), "--save-dir", str(self.folder / name)]

    def live(self, name: str, prepare: Callable[[], None] = lambda: None, flags: Sequence[str] = ()) -> Life:
        return Life([*self.words(name), *flags], self.folder / f"{name}.log", prepare)

    def is_as_expected(self, name: str) -> bool:
        found = load_checkpoint(self.folder / name / "checkpoint_last.pt")
        progress, expected = ({**checkpoint.training["progress"], "seconds": 0} for checkpoint in (found, self.expected))
        moments, expected_moments = (checkpoint.training["optimizer"]["exp_avg"] for checkpoint in (found, self.expected))
        return progress == expected and all(
            torch.equal(value, found.weights[key]) and torch.equal(expected_moments[key], moments[key])
            for key, value in self.expected.weights.items())

    def saved_updates(self, name: str) -> int:
        """Where a run would go on from; reads every checkpoint there is, which must all be whole."""
        folder = self.folder / name
        for path in folder.glob("checkpoint*.pt"):
            load_checkpoint(path)
        last = folder / "checkpoint_last.pt"
        return load_checkpoint(last).training["progress"]["updates"] if last.exists() else 0

    # -- the faults

    def kill(self, number: int) -> Row:
        """At any moment of a run, start-up and saving included, until it is through; then another run."""
        row = Row("kill -9 at a random moment")
        num_writing = num_runs = 0
        while row.injected < number:
            name = f"killed{num_runs}"
            num_runs += 1
            done = 0
            while True:
                life = self.live(name)
                # Half of the lives could have finished the run: kills hit its end as often as its start.
                code = life.end(self.random.uniform(0, self.whole_seconds) if row.injected < number else HANGS_AFTER)
                if code is not None:
                    assert code == 0, (self.folder / f"{name}.log").read_text()[-2000:]
                    break
                row.injected += 1
                num_writing += any((self.folder / name).glob(".*.part"))
                saved = self.saved_updates(name)
                assert saved >= done, "a kill took back what was saved"
                done = saved
                row.lost += max(0, life.updates - saved)
                row.survived += 1
            if not self.is_as_expected(name):
                row.survived = 0
                row.remark = f"{name} differs from the undisturbed run"
                return row
            assert not list((self.folder / name).glob(".*")), "half-written files stayed"
        row.remark = f"{num_runs} {'run' if num_runs == 1 else 'runs'}; {num_writing} kills while a file was being written"
        return row

    def terminate(self, number: int) -> Row:
        row = Row("SIGTERM at a random moment")
        name, code = "terminated", None
        while code != 0:
            life = self.live(name)
            code = life.end(self.random.uniform(0.3, 1.0) * self.whole_seconds if row.injected < number else HANGS_AFTER,
                            signal.SIGTERM)
            if code in (128 + signal.SIGTERM, -signal.SIGTERM):  # the latter: before training had begun
                row.injected += 1
                row.survived += 1
                row.lost += max(0, life.updates - self.saved_updates(name))
            else:
                assert code == 0, (self.folder / f"{name}.log").read_text()[-2000:]
                if row.injected < number:
                    shutil.rmtree(self.folder / name)
                    code = None
        row.survived *= self.is_as_expected(name)
        return row

    def fill_disk(self, number: int) -> Row:
        """From some update on, no file may grow beyond some size, as under a quota; two saves later it may again."""
        row = Row("full disk while saving")
        for attempt in range(number):
            # The log, which must go on, is smaller than a quarter of a checkpoint.
            limit, first = self.random.randrange(self.size // 4, self.size), self.random.randrange(2, self.max_update - 6)
            row.injected += 1
            name = f"full{attempt}"
            code = self.live(name, partial(_limit_files, first, first + 4, limit)).end(HANGS_AFTER)
            text = (self.folder / f"{name}.log").read_text()
            assert "could not be written: File too large" in text, text
            row.survived += code == 0 and self.is_as_expected(name) and not list((self.folder / name).glob(".*"))
        return row

    def stay_full(self) -> Row:
        """A disk that stays full ends the run with one line, and the same command goes on once there is room."""
        row = Row("full disk until the run gives up", injected=1)
        half = self.max_update // 2
        assert self.live("filled", partial(_limit_files, half, self.max_update, self.size // 2)).end(HANGS_AFTER) == 2
        text = (self.folder / "filled.log").read_text()
        assert "error: " in text
        assert "Traceback" not in text
        before = self.saved_updates("filled")
        row.lost = half + 6 - before  # the third save after it filled up
        assert self.live("filled").end(HANGS_AFTER) == 0
        row.survived = int(before >= half - 2 and self.is_as_expected("filled"))
        return row

    def corrupt(self, number: int, num_resumed: int) -> Row:
        """Flip bits, overwrite blocks or cut off the end of the last checkpoint: it must be noticed every time."""
        row = Row("damaged checkpoint_last.pt")
        good = self.folder / "undisturbed" / "checkpoint_last.pt"
        whole = good.read_bytes()
        # Second names of the same state would be damaged with it.
        earlier = [other for other in good.parent.iterdir() if not other.samefile(good)]
        for attempt in range(number):
            name = f"damaged{attempt}"
            path = self.folder / name / good.name
            path.parent.mkdir()
            for other in earlier:
                shutil.copy2(other, path.parent / other.name)
            path.write_bytes(damaged(whole, self.random))
            row.injected += 1
            try:
                load_checkpoint(path)
                row.remark = f"{name} was not noticed"
                continue
            except DamageError:
                pass
            if attempt >= num_resumed:
                row.survived += 1
            else:
                assert self.live(name).end(HANGS_AFTER) == 0
                assert "is damaged" in (text := (self.folder / f"{name}.log").read_text()) or "cannot be read" in text
                row.survived += self.is_as_expected(name)
                row.lost += 2  # back to the checkpoint before
            shutil.rmtree(self.folder / name)
        row.remark = row.remark or f"noticed every time; {num_resumed} resumed from the one before"
        return row

    def begin_again(self, number: int) -> Row:
        """A second phase in the folder of a first one, counting from 0: nothing of the first is lost, and its own are kept."""
        row = Row("second phase in one folder")
        for attempt in range(number):
            name, row.injected = f"phases{attempt}", row.injected + 1
            folder = self.folder / name
            lengths = [2 * self.random.randrange(3, self.max_update // 2 + 1) for _ in range(2)]
            assert self.live(name, flags=["--max-update", str(lengths[0])]).end(HANGS_AFTER) == 0
            before = {path.read_bytes() for path in folder.iterdir()}
            reset = ["--reset-optimizer", "--reset-dataloader", "--reset-meters", "--max-update", str(lengths[1])]
            assert self.live(name, flags=reset).end(HANGS_AFTER) == 0
            numbered = {path: load_checkpoint(path).training for path in folder.glob("checkpoint_*_*.pt")}
            run = load_checkpoint(folder / "checkpoint_last.pt").training["run"]
            own = sorted(training["progress"]["updates"] for path, training in numbered.items() if training["run"] == run)
            is_kept = before <= {path.read_bytes() for path in folder.iterdir()}
            row.survived += is_kept and own == list(range(lengths[1] - 4, lengths[1] + 1, 2))
        return row

    def kill_ranks(self, number: int) -> Row:
        """The launcher starts two ranks, one of them is killed, and it starts both again, three times at most."""
        row = Row("one of two ranks killed")
        with self._two_ranks("ranks") as no_garbage_collection:
            assert no_garbage_collection.wait(HANGS_AFTER) == 0, self._end_of_log("ranks")
        with self._two_ranks("torn") as run:
            for kill in range(1, number + 1):
                self._wait_for_update(kill * self.max_update // (number + 2), run)
                while len(ranks := ranks_of(run.pid)) < 2:
                    assert run.poll() is None, self._end_of_log("torn")
                    time.sleep(0.05)
                os.kill(self.random.choice(ranks), signal.SIGKILL)
                row.injected += 1
            assert run.wait(HANGS_AFTER) == 0, self._end_of_log("torn")
        expected, found = (load_checkpoint(self.folder / name / "checkpoint_last.pt").weights for name in ("ranks", "torn"))
        row.survived = number * all(torch.equal(value, found[key]) for key, value in expected.items())
        row.lost = number  # at most: a checkpoint every second update
        row.remark = "started again by the launcher"
        return row

    def _wait_for_update(self, number: int, run: subprocess.Popen[bytes]) -> None:
        path = self.folder / "torn" / "checkpoint_last.pt"
        while not path.exists() or load_checkpoint(path).training["progress"]["updates"] < number:
            assert run.poll() is None, self._end_of_log("torn")
            time.sleep(0.05)

    def _end_of_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-3000:]

    @contextmanager
    def _two_ranks(self, name: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "lamina", *self.words(name), "--distributed-world-size", "2"]
        with (self.folder / f"{name}.log").open("wb") as log:
            run = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            yield run
        finally:
            run.terminate()
            run.wait()


def _limit_files(first: int, last: int, limit: int) -> None:
    """In this process: between these updates, writing beyond `limit` bytes of a file fails."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    real = DivergenceWatch.add

    def add(watch: DivergenceWatch, *arguments: object) -> None:
        real(watch, *arguments)  # type: ignore[arg-type]
        updates = watch.progress.updates
        soft = limit if first <= updates < last else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))

    DivergenceWatch.add = add  # type: ignore[method-assign, assignment]


def damaged(content: bytes, generator: random.Random) -> bytes:
    kind = generator.choice(("bit", "block", "cut"))
    if kind == "cut":
        return content[: generator.randrange(len(content))]
    changed = bytearray(content)
    place = generator.randrange(len(content))
    if kind == "bit":
        changed[place] ^= 1 << generator.randrange(8)
    else:
        block = changed[place : place + 512]
        changed[place : place + 512] = bytes(byte ^ 0xFF for byte in block)
    return bytes(changed)


def ranks_of(launcher: int) -> list[int]:
    """The processes that it started to train; not those of Python's own that keep them company."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(number) for number in children if b"spawn_main" in Path(f"/proc/{number}/cmdline").read_bytes()]


def table(rows: list[Row]) -> str:
    """Faults injected, survived, and work lost, in columns."""
    cells = [("fault", "injected", "survived", "updates repeated", "")]
    cells += [(row.fault, str(row.injected), str(row.survived), str(row.lost), row.remark) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    aligned = [[fault.ljust(widths[0]), *map(str.rjust, numbers, widths[1:4]), remark] for fault, *numbers, remark in cells]
    return "\n".join("  ".join(row).rstrip() for row in aligned)


def run_all(*, seed: int) -> bool:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lamina-chaos-") as folder:
        chaos = Chaos(Path(folder), seed, max_update=60)
        print(f"| an undisturbed run of {chaos.max_update} updates takes {chaos.whole_seconds:.1f} s; seed {seed}", flush=True)
        rows = []
        for fault in (lambda: chaos.kill(120), lambda: chaos.terminate(10), lambda: chaos.fill_disk(8), chaos.stay_full,
                      lambda: chaos.corrupt(200, 10), lambda: chaos.begin_again(20), lambda: chaos.kill_ranks(3)):
            rows.append(fault())
            print(f"{table(rows[-1:]).splitlines()[1]}  ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"\n{table(rows)}")
    return all(row.survived == row.injected for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the moments and places; another one each time")
    torch.set_num_threads(1)
    sys.exit(0 if run_all(seed=parser.parse_args().seed) else 1)
