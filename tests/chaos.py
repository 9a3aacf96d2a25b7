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
import pty
import random
import re
import resource
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import torch

from lamina.checkpoint.format import Checkpoint, load_checkpoint
from lamina.cli import main
from lamina.errors import DamageError
from lamina.training.divergence import DivergenceWatch
from lamina.training.keeper import Keeper
from rank_work import run_commands
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
            with suppress(OSError):
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


class Terminal:
    """A command on a pseudo-terminal of its own, as a person starts one: what is typed there signals all its processes."""

    def __init__(self, command: list[str], log: Path) -> None:
        self.log = log
        self.text = ""
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            for number in (signal.SIGINT, signal.SIGHUP):  # as a shell leaves them, also where we run under nohup
                signal.signal(number, signal.SIG_DFL)
            os.execv(command[0], command)

    def read_until(self, is_seen: Callable[[str], bool], seconds: float = HANGS_AFTER) -> bool:
        """Whether it was seen; what is printed must be taken in, or the command would wait."""
        deadline = time.monotonic() + seconds
        while not is_seen(self.text):
            if not select.select([self.master], [], [], max(0.0, deadline - time.monotonic()))[0]:
                return False
            try:
                chunk = os.read(self.master, 65536)
            except OSError:  # all that wrote to it are gone
                chunk = b""
            if not chunk:
                return False
            self.text += chunk.decode()
            with self.log.open("ab") as log:
                log.write(chunk)
        return True

    def end(self) -> int | None:
        """Its exit status; None if it had to be killed."""
        self.read_until(lambda _: False)
        deadline = time.monotonic() + HANGS_AFTER
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.killpg(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        return None

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def signal_all(self) -> None:
        os.killpg(self.pid, signal.SIGTERM)

    def hang_up(self) -> None:
        """As a closed window or a lost connection does; nobody reads what is printed from now on."""
        os.close(self.master)
        self.master = os.open(os.devnull, os.O_RDONLY)


# How to reach all processes of a terminal at once, and what they hear.
GROUP_SIGNALS = {"Ctrl-C": (Terminal.press_ctrl_c, signal.SIGINT), "SIGTERM": (Terminal.signal_all, signal.SIGTERM),
                 "hang-up": (Terminal.hang_up, signal.SIGHUP)}


LOST_LOGS = ("closed pipe", "full disk")


class Chaos:
    def __init__(self, folder: Path, seed: int, max_update: int) -> None:
        self.folder = folder
        self.random = random.Random(seed)
        self.max_update = max_update
        # Six batches an epoch, so that epochs end where a checkpoint is due anyway: every second update.
        self.data = make_data(folder / "data", num_lines=46)
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
        assert self.live("filled", partial(_limit_files, half, self.max_update + 1, self.size // 2)).end(HANGS_AFTER) == 2
        text = (self.folder / "filled.log").read_text()
        assert "error: " in text
        assert "Traceback" not in text
        before = self.saved_updates("filled")
        row.lost = half + 6 - before  # the third save after it filled up
        assert self.live("filled").end(HANGS_AFTER) == 0
        # The writer may be one state behind, whose name checkpoint_last.pt a newer one has taken.
        row.survived = int(before >= half - 4 and self.is_as_expected("filled"))
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

    def kill_ranks(self, number: int, *flags: str) -> Row:
        """The launcher starts two ranks, one of them is killed, and it starts both again, three times at most."""
        row = Row(" ".join(["one of two ranks killed", *flags]))
        whole, torn = ("-".join([name, *flags]) for name in ("ranks", "torn"))
        with self._two_ranks(whole, *flags) as no_garbage_collection:
            assert no_garbage_collection.wait(HANGS_AFTER) == 0, self._end_of_log(whole)
        with self._two_ranks(torn, *flags) as run:
            for kill in range(1, number + 1):
                self._wait_for_update(kill * self.max_update // (number + 2), run, torn)
                while len(ranks := ranks_of(run.pid)) < 2:
                    assert run.poll() is None, self._end_of_log(torn)
                    time.sleep(0.05)
                os.kill(self.random.choice(ranks), signal.SIGKILL)
                row.injected += 1
            assert run.wait(HANGS_AFTER) == 0, self._end_of_log(torn)
        row.survived = number * self._are_equal(whole, torn)
        row.lost = number  # at most: a checkpoint every second update
        row.remark = "started again by the launcher"
        return row

    def signal_group(self, kind: str, number: int) -> Row:
        """Two ranks and their launcher hear it at once, again and again in one run, which then equals an undisturbed one."""
        row = Row(f"{kind} on a terminal, two ranks")
        name = f"group-{kind}"
        send, what = GROUP_SIGNALS[kind]
        done = 0
        for _ in range(number):
            command = self._ranks_command(name, "--max-update", "100000", "--log-format", "simple")
            run = Terminal(command, self.folder / f"{name}.log")
            wanted = done + self.random.randrange(1, 12)
            assert run.read_until(partial(_has_update, wanted)), self._end_of_log(name)
            time.sleep(self.random.uniform(0, 0.05))
            seen = max(map(int, re.findall(r"num_updates=(\d+)", run.text)))
            send(run)
            row.injected += 1
            code = run.end()
            saved = self.saved_updates(name)
            told = re.search(rf"stopped by {what.name} after update (\d+)", run.text)
            is_told = kind == "hang-up" or (told is not None and int(told[1]) == saved)
            if code == 128 + what and saved >= seen and is_told:
                row.survived += 1
            else:
                row.remark = f"exit {code}, saved {saved} after {seen}"
            row.lost += max(0, seen - saved)
            done = saved
        if number > 1:
            with self._two_ranks(f"{name}-whole", "--max-update", str(done)) as no_garbage_collection:
                assert no_garbage_collection.wait(HANGS_AFTER) == 0, self._end_of_log(f"{name}-whole")
            if not self._are_equal(name, f"{name}-whole"):
                row.survived, row.remark = 0, "differs from the undisturbed run"
        return row

    def lose_log(self, kind: str, number: int, number_of_ranks: int) -> Row:
        """From some update on nobody takes what is printed; the run must not care. So with one process, then with two ranks."""
        row = Row(f"{kind} under the log")
        for attempt in range(number):
            name = f"{kind}{attempt}"
            row.injected += 1
            first = self.random.randrange(1, self.max_update - 2)
            code = self.live(name, partial(_lose_log, first, kind)).end(HANGS_AFTER)
            row.survived += code == 0 and self.is_as_expected(name)
        if number_of_ranks and not (self.folder / "ranks").exists():
            with self._two_ranks("ranks") as no_garbage_collection:
                assert no_garbage_collection.wait(HANGS_AFTER) == 0, self._end_of_log("ranks")
        for attempt in range(number_of_ranks):
            name = f"{kind}-ranks{attempt}"
            row.injected += 1
            command = self._ranks_command(name, "--log-format", "simple")
            output: int | BinaryIO = subprocess.PIPE if kind == "closed pipe" else open("/dev/full", "wb")  # noqa: SIM115
            run = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            if run.stdout is not None:
                for _ in range(self.random.randrange(1, 30)):
                    run.stdout.readline()
                run.stdout.close()
            try:
                row.survived += run.wait(HANGS_AFTER) == 0 and self._are_equal("ranks", name)
            except subprocess.TimeoutExpired:
                row.remark = f"{name} hangs"
                run.terminate()
                run.wait()
        row.remark = row.remark or f"{number_of_ranks} of them with two ranks"
        return row

    def share_folder(self, number: int) -> Row:
        """Two runs at a time in one folder: one is told so and leaves; every second time the other is killed and resumed."""
        row = Row("two runs in one folder")
        num_attempts = 0
        while row.injected < number:
            name = f"shared{num_attempts}"
            num_attempts += 1
            lives = [self.live(name)]
            time.sleep(self.random.uniform(0, 0.7) * self.whole_seconds)
            lives.append(Life(self.words(name), self.folder / f"{name}-second.log"))
            codes = [life.end(HANGS_AFTER) for life in reversed(lives)] if num_attempts % 2 else [
                lives[1].end(HANGS_AFTER), lives[0].end(self.random.uniform(0, 0.3) * self.whole_seconds)]
            text = (self.folder / f"{name}.log").read_text() + (self.folder / f"{name}-second.log").read_text()
            num_refused = text.count("is in use by process")
            assert num_refused <= 1, text
            assert codes.count(2) == num_refused, text
            if None in codes:  # its lock is left behind
                assert Life(self.words(name), self.folder / f"{name}-third.log").end(HANGS_AFTER) == 0
            row.injected += num_refused  # else the first was through, or the second had not begun
            row.survived += num_refused * (self.is_as_expected(name) and not list((self.folder / name).glob(".*")))
        return row

    def start_unalike(self, number: int) -> Row:
        """Ranks with different settings or data: one line names the difference, and nothing is written."""
        row = Row("ranks that were not started alike")
        folder = self.folder / "unalike"
        folder.mkdir()
        other_data = make_data(folder / "other", num_lines=30)
        changes = {"--lr": ["0.1"], "--seed": ["7"], "--dropout": ["0.3"], "--optimizer": ["sgd"], "--max-update": ["7"],
                   "--update-freq": ["2"], "--clip-norm": ["0.5"], "the data file": []}
        chosen = [list(changes)[attempt % len(changes)] for attempt in range(number)]
        commands = []
        for name in chosen:
            words = self.words("unalike/out")
            other = [*words, name, *changes[name]] if changes[name] else [words[0], str(other_data), *words[2:]]
            commands.append([words, other] if self.random.random() < 0.5 else [other, words])
        codes = run_commands(2, commands, folder)
        lines = [line for rank in range(2) for line in (folder / f"{rank}.err").read_text().splitlines() if "error" in line]
        row.injected = number
        for name in changes:
            wanted = chosen.count(name)
            told = sum(line.startswith(f"error: the ranks of this run were not started alike: {name} ") for line in lines)
            row.survived += wanted if told == wanted else 0
        if codes != [[2] * number] * 2 or len(lines) != number or (folder / "out").exists():
            row.survived, row.remark = 0, f"exit {codes}, {len(lines)} lines"
        return row

    def stop_rank(self, number: int) -> Row:
        """A rank that is stopped but not gone: the other gives up after --distributed-timeout, and the same command goes on."""
        row = Row("one of two ranks stopped")
        for attempt in range(number):
            name = f"stopped{attempt}"
            with self._two_ranks(name, "--distributed-timeout", "0.2", "--max-update", "100000") as run:
                self._wait_for_update(self.random.randrange(2, 20), run, name)
                os.kill(self.random.choice(ranks_of(run.pid)), signal.SIGSTOP)
                row.injected += 1
                started = time.monotonic()
                code = run.wait(HANGS_AFTER)
                row.remark = f"noticed after {time.monotonic() - started:.0f} s"
            saved = self.saved_updates(name)
            text = (self.folder / f"{name}.log").read_text()
            with self._two_ranks(name, "--max-update", str(saved + 4)) as run:
                named = re.findall(r"lost contact with rank [01],", text)
                row.survived += (run.wait(HANGS_AFTER) == 0 and code == 2 and len(named) == 1
                                 and self.saved_updates(name) == saved + 4)
        return row

    def lose_data(self, number: int) -> Row:
        """Each rank has its data folder, and one vanishes: all end with one line, and resume to the bit when it is back."""
        row = Row("the data folder of one of two ranks vanishes")
        folder = self.folder / "vanished"
        own = [make_data(folder / str(rank), num_lines=46) for rank in range(2)]
        for attempt in range(number):
            name = f"vanished/run{attempt}"
            with self._by_hand(name, own, "--max-update", "100000") as ranks:
                self._wait_for_update(self.random.randrange(2, 20), ranks[0], name)
                lost = self.random.choice(own)
                aside = lost.with_name("aside")
                lost.rename(aside)
                row.injected += 1
                codes = [rank.wait(HANGS_AFTER) for rank in ranks]
                aside.rename(lost)
            text = (self.folder / f"{name}.log").read_text()
            saved = self.saved_updates(name)
            for last, which in ((saved + 4, name), (saved + 4, f"{name}-whole")):
                with self._by_hand(which, own, "--max-update", str(last)) as ranks:
                    codes += [rank.wait(HANGS_AFTER) for rank in ranks]
            row.survived += (codes == [2, 2, 0, 0, 0, 0] and text.count("has disappeared") == 1
                             and self._are_equal(name, f"{name}-whole"))
        return row

    @contextmanager
    def _by_hand(self, name: str, data: Sequence[Path], *flags: str) -> Iterator[list[subprocess.Popen[bytes]]]:
        """Two ranks, each with a data folder of its own, which nobody starts again."""
        meeting = self.folder / f"{name.replace('/', '-')}-meeting-{time.monotonic_ns()}"
        ranks = []
        with (self.folder / f"{name}.log").open("ab") as log:
            for rank, own in enumerate(data):
                words = self.words(name)
                command = [sys.executable, "-m", "lamina", words[0], str(own), *words[2:], "--distributed-world-size", "2",
                           "--distributed-rank", str(rank), "--distributed-init-method", f"file://{meeting}",
                           "--distributed-no-spawn", *flags]
                ranks.append(subprocess.Popen(command, stdout=log, stderr=log))
        try:
            yield ranks
        finally:
            for rank_process in ranks:
                rank_process.kill()
                rank_process.wait()

    def restart_with_torchrun(self, number: int) -> Row:
        """torchrun starts all ranks again when one is killed, while they start or while they train, ten times a run."""
        row = Row("one of two ranks killed under torchrun")
        max_update = str(5 * self.max_update)
        with self._two_ranks("torchrun-whole", "--max-update", max_update) as no_garbage_collection:
            assert no_garbage_collection.wait(HANGS_AFTER) == 0, self._end_of_log("torchrun-whole")
        num_runs = 0
        while row.injected < number:
            name = f"torchrun{num_runs}"
            num_runs += 1
            num_kills = 0
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts",
                       "10", "-m", "lamina", *self.words(name), "--max-update", max_update]
            with (self.folder / f"{name}.log").open("wb") as log:
                run = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
            killed: set[int] = set()
            while run.poll() is None and num_kills < 10 and row.injected + num_kills < number:
                ranks = [rank for rank in ranks_of(run.pid, b"lamina") if rank not in killed]
                if len(ranks) < 2:
                    time.sleep(0.05)
                    continue
                if self.random.random() < 0.5:
                    time.sleep(self.random.uniform(0, 8))  # as long as it takes to start, or a bit longer
                else:
                    self._wait_for_new_save(name, run)
                with suppress(ProcessLookupError):
                    os.kill(self.random.choice(ranks), signal.SIGKILL)
                    num_kills += 1
                killed |= set(ranks)
            row.injected += num_kills
            try:
                code = run.wait(HANGS_AFTER)
            except subprocess.TimeoutExpired:
                row.remark = f"{name} hangs"
                run.terminate()
                code = run.wait()
            if code == 0 and self._are_equal("torchrun-whole", name):
                row.survived += num_kills
            else:
                row.remark = row.remark or f"{name} exits with {code}"
        row.lost = row.injected  # at most: a checkpoint every second update
        row.remark = row.remark or f"{num_runs} runs"
        return row

    def _wait_for_new_save(self, name: str, run: subprocess.Popen[bytes]) -> None:
        def state() -> tuple[int, int] | None:
            with suppress(OSError):
                found = (self.folder / name / "checkpoint_last.pt").stat()
                return found.st_mtime_ns, found.st_ino
            return None

        before = state()
        deadline = time.monotonic() + HANGS_AFTER
        while state() == before and run.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)

    def _are_equal(self, *names: str) -> bool:
        one, other = (load_checkpoint(self.folder / name / "checkpoint_last.pt").weights for name in names)
        return all(torch.equal(value, other[key]) for key, value in one.items())

    def _ranks_command(self, name: str, *flags: str) -> list[str]:
        return [sys.executable, "-m", "lamina", *self.words(name), "--distributed-world-size", "2", *flags]

    def _wait_for_update(self, number: int, run: subprocess.Popen[bytes], name: str) -> None:
        path = self.folder / name / "checkpoint_last.pt"
        while not path.exists() or load_checkpoint(path).training["progress"]["updates"] < number:
            assert run.poll() is None, self._end_of_log(name)
            time.sleep(0.05)

    def _end_of_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()[-3000:]

    @contextmanager
    def _two_ranks(self, name: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
        with (self.folder / f"{name}.log").open("wb") as log:
            run = subprocess.Popen(self._ranks_command(name, *flags), stdout=log, stderr=log)
        try:
            yield run
        finally:
            run.terminate()
            run.wait()


def _lose_log(first: int, kind: str) -> None:
    """In this process: from this update on, nobody takes what it prints."""
    real = DivergenceWatch.add

    def add(watch: DivergenceWatch, *arguments: object) -> None:
        real(watch, *arguments)  # type: ignore[arg-type]
        if watch.progress.updates == first:
            reading, writing = os.pipe()
            os.close(reading)
            output = writing if kind == "closed pipe" else os.open("/dev/full", os.O_WRONLY)
            os.dup2(output, 1)
            os.dup2(output, 2)

    DivergenceWatch.add = add  # type: ignore[method-assign, assignment]


def _has_update(number: int, text: str) -> bool:
    return any(int(found) >= number for found in re.findall(r"num_updates=(\d+)", text))


def _limit_files(first: int, last: int, limit: int) -> None:
    """In this process: while a state of these updates is written, writing beyond `limit` bytes of a file fails.

    By the state's update and not by the moment: the writer may be behind the training.
    """
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    real = Keeper._write

    def write(keeper: Keeper, checkpoint: Checkpoint, *arguments: object) -> object:
        soft = limit if first <= checkpoint.training["progress"]["updates"] < last else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, resource.RLIM_INFINITY))
        return real(keeper, checkpoint, *arguments)  # type: ignore[arg-type]

    Keeper._write = write  # type: ignore[method-assign, assignment]


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


def ranks_of(launcher: int, mark: bytes = b"spawn_main") -> list[int]:
    """The processes that it started to train; not those of Python's own that keep them company."""
    found = []
    with suppress(OSError):  # it has ended, or one of them has in the meantime
        for number in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
            if mark in Path(f"/proc/{number}/cmdline").read_bytes():
                found.append(int(number))
    return found


def table(rows: list[Row]) -> str:
    """Faults injected, survived, and work lost, in columns."""
    cells = [("fault", "injected", "survived", "updates repeated", "")]
    cells += [(row.fault, str(row.injected), str(row.survived), str(row.lost), row.remark) for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(5)]
    aligned = [[fault.ljust(widths[0]), *map(str.rjust, numbers, widths[1:4]), remark] for fault, *numbers, remark in cells]
    return "\n".join("  ".join(row).rstrip() for row in aligned)


def faults_of(chaos: Chaos) -> dict[str, Callable[[], Row]]:
    """What `make chaos` injects, and how often."""
    return {
        "kill": lambda: chaos.kill(120),
        "terminate": lambda: chaos.terminate(10),
        "full disk": lambda: chaos.fill_disk(8),
        "disk that stays full": chaos.stay_full,
        "damage": lambda: chaos.corrupt(200, 10),
        "second phase": lambda: chaos.begin_again(20),
        "killed ranks": lambda: chaos.kill_ranks(3),
        "killed ranks that save shards": lambda: chaos.kill_ranks(3, "--fsdp", "--sharded-save"),
        **{f"group signal {kind}": partial(chaos.signal_group, kind, 20) for kind in GROUP_SIGNALS},
        **{f"lost log {kind}": partial(chaos.lose_log, kind, 14, 6) for kind in LOST_LOGS},
        "shared folder": lambda: chaos.share_folder(20),
        "unlike ranks": lambda: chaos.start_unalike(24),
        "stopped rank": lambda: chaos.stop_rank(2),
        "lost data": lambda: chaos.lose_data(3),
        "torchrun": lambda: chaos.restart_with_torchrun(50),
    }


def run_all(*, seed: int, only: str = "") -> bool:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lamina-chaos-") as folder:
        chaos = Chaos(Path(folder), seed, max_update=60)
        print(f"| an undisturbed run of {chaos.max_update} updates takes {chaos.whole_seconds:.1f} s; seed {seed}", flush=True)
        rows = []
        for name, inject in faults_of(chaos).items():
            if only in name:
                rows.append(inject())
                print(f"{table(rows[-1:]).splitlines()[1]}  ({time.monotonic() - started:.0f} s)", flush=True)
    print(f"\n{table(rows)}")
    return all(row.survived == row.injected for row in rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the moments and places; another one each time")
    parser.add_argument("--only", default="", metavar="WORD", help="faults whose name holds it: kill, signal, torchrun ...")
    torch.set_num_threads(1)
    arguments = parser.parse_args()
    sys.exit(0 if run_all(seed=arguments.seed, only=arguments.only) else 1)
