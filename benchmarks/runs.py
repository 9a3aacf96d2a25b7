"""Runs of `lamina train`, measured: what train.py, memory.py, depth.py and scaling.py have in common.

Each run is a process of its own, so that its peak memory is its own, and is stopped when enough has been measured. The time to
its first line, in which the model is built, compiled and recorded, is its warm-up; so is the time of later lines during which
something was recorded. Speed is that of all other lines. Cases take turns, round by round, and the best round counts: what else
the machine does hits all of them alike, and the spread of the rounds shows it. With --together the runs start at once and wait,
stopped, for their turns (turns.py).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import IO, Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from made_up import write_folder
from table import ROUNDS

ADMIN = ("--init-type", "admin")
FUSION = ("--surfacefusion", "att", "--sf-mode", "hard", "--sf-gate", "0.8")


def _layer_drop(rate: str) -> tuple[str, ...]:
    return ("--encoder-layerdrop", rate, "--decoder-layerdrop", rate)


PRE_LN = ("--encoder-normalize-before", "--decoder-normalize-before")
# What a model learns with, then what it is computed with.
TECHNIQUES: dict[str, tuple[str, ...]] = {
    "plain": (),
    "pre-ln": PRE_LN,
    "admin": ADMIN,
    "keel": ("--init-type", "keel"),
    "b2t": ("--init-type", "b2t"),
    "layernorm-scaling": (*PRE_LN, "--init-type", "layernorm-scaling"),
    "fusion": FUSION,
    "transparent": ("--transparent-attention",),
    "denseformer": ("--mixing", "denseformer"),
    "value-residual": ("--mixing", "value-residual"),
    "lime": ("--mixing", "lime"),
    "attention-residuals": (*PRE_LN, "--mixing", "attention-residuals"),
    "attention-residuals-blocks": (*PRE_LN, "--mixing", "attention-residuals", "--attnres-blocks", "3"),
    "layerdrop-0.2": _layer_drop("0.2"),
    "layerdrop-0.5": _layer_drop("0.5"),
    "all": (*ADMIN, *FUSION, *_layer_drop("0.2")),
    "recomputed": ("--checkpoint-activations",),
    "recomputed-eager": ("--checkpoint-activations", "--no-cuda-graphs"),
    "uncompiled": ("--no-compile",),
    "unrecorded": ("--no-cuda-graphs",),
    "padded": ("--no-pack", "--batch-order", "length"),
    "eager": ("--no-cuda-graphs", "--no-pack", "--batch-order", "length"),
    # On one GPU, with all that talking to other ranks takes but the others.
    "grouped": (),
    "sharded": ("--fsdp", "--reshard-after-forward"),
    "sharded-eager": ("--fsdp", "--reshard-after-forward", "--no-cuda-graphs"),
    "gathered": ("--fsdp", "--no-reshard-after-forward"),
}
GROUPED = ("grouped", "sharded", "sharded-eager", "gathered")
HAS_GPU = torch.cuda.is_available()
# Updates of a line in the log: a few milliseconds each on a GPU, a good part of a second on a processor.
INTERVAL = 10 if HAS_GPU else 2
# Notes of a run that is not the one that was meant.
SETBACK = re.compile(r" is off(?: for [\w ]+)?, since |eager, not captured|memory ran out|has no effect")


class RunError(Exception):
    pass


@dataclass(frozen=True)
class Case:
    """What is measured. Layers are those of encoder and decoder, such as 18-18; an empty text leaves them to the preset."""

    arch: str
    layers: str
    max_tokens: int
    vocabulary: int  # of made-up data
    precision: str
    technique: str

    @property
    def flags(self) -> list[str]:
        encoder, _, decoder = self.layers.partition("-")
        return ["--arch", self.arch, "--max-tokens", str(self.max_tokens), f"--{self.precision}", *TECHNIQUES[self.technique],
                *(["--encoder-layers", encoder, "--decoder-layers", decoder or encoder] if encoder else [])]

    def __str__(self) -> str:
        return " ".join(filter(None, (self.arch, self.layers, f"{self.max_tokens} tokens", self.precision, self.technique)))


@dataclass
class Log:
    """Sums over what a run tells, as JSON."""

    vocabulary: int = 0
    weights: int = 0
    padding: float = 0.0
    warm_up: float | None = None  # seconds
    updates: int = 0
    tokens: float = 0.0
    seconds: float = 0.0
    peak_gib: float = 0.0
    _updates_seen: int = 0
    _was_recording: bool = False

    def read(self, row: dict[str, Any], now: float) -> None:
        """A line that came `now` seconds after the command."""
        if "note" in row:
            self._read_note(row["note"])
        elif "wps" in row:
            updates = row["num_updates"] - self._updates_seen
            seconds = updates / row["ups"]
            self._updates_seen, self.peak_gib = row["num_updates"], row["mem_gib"]
            if self.warm_up is None:
                self.warm_up = now
            elif self._was_recording:
                self.warm_up += seconds
            else:
                self.updates += updates
                self.tokens += updates * row["wpb"]
                self.seconds += seconds
            self._was_recording = False

    def _read_note(self, note: str) -> None:
        self._was_recording |= note.startswith(("captured ", "compiled "))
        if found := re.search(r"dictionary: (\d+) types", note):
            self.vocabulary = int(found[1])
        elif found := re.search(r"([\d.]+) % padding", note):
            self.padding = float(found[1])
        elif found := re.search(r"model params: (\d+)", note):
            self.weights = int(found[1])
        elif SETBACK.search(note):
            print(f"  {note}", file=sys.stderr)


@dataclass
class Rounds:
    """The runs of one case."""

    case: Case
    logs: list[Log] = field(default_factory=list)

    @property
    def best(self) -> Log:
        return min(self.logs, key=lambda log: log.seconds / log.updates)

    @property
    def seconds_an_update(self) -> float:
        return self.best.seconds / self.best.updates

    @property
    def spread(self) -> float:
        """How much more time the slowest round took than the fastest, in percent."""
        return 100 * (max(log.seconds / log.updates for log in self.logs) / self.seconds_an_update - 1)

    def label(self) -> dict[str, Any]:
        case = self.case
        return {"arch": case.arch, **({"layers": case.layers} if case.layers else {}), "vocabulary": self.best.vocabulary,
                "max-tokens": case.max_tokens, "precision": case.precision, "technique": case.technique}

    def speed(self) -> dict[str, Any]:
        best = self.best
        return {"target tokens/s": round(best.tokens / best.seconds), "updates/s": best.updates / best.seconds,
                "ms/update": 1000 * self.seconds_an_update, **({"spread %": self.spread} if len(self.logs) > 1 else {})}

    def every_round(self) -> dict[str, Any]:
        return {ROUNDS: {"target tokens/s": [log.tokens / log.seconds for log in self.logs],
                         "peak GiB": [log.peak_gib for log in self.logs]}}

    def costs(self) -> dict[str, Any]:
        """The first warm-up is cold where nothing is cached yet; the last is a later run's."""
        first, last = (log.warm_up for log in (self.logs[0], self.logs[-1]))
        return {"padding %": self.best.padding, "peak GiB": max(log.peak_gib for log in self.logs), "warm-up s": first,
                **({"again": last} if len(self.logs) > 1 else {})}


def start(data: str, case: Case, extra: Sequence[str], errors: IO[str]) -> subprocess.Popen[str]:
    """A run that tells its updates as JSON. Its learning rate is too low to diverge, however deep the model: speed does not
    depend on it."""
    command = [sys.executable, "-m", "lamina", "train", data, "--share-all-embeddings",
               "--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1", "--optimizer", "adam",
               "--adam-betas", "(0.9, 0.98)", "--lr", "1e-5", "--log-interval", str(INTERVAL), "--log-format", "json",
               "--no-save", "--disable-validation", *case.flags, *extra]
    environment = {**os.environ, "LAMINA_ALWAYS_A_GROUP": "1" if case.technique in GROUPED else "0"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)


def why_it_ended(process: subprocess.Popen[str], errors: IO[str]) -> str:
    if not process.returncode:
        return "it ended before anything was measured: leave --max-update out, or raise it"
    errors.seek(0)
    return errors.read().strip().rpartition("\n")[2] or f"exit code {process.returncode}"


def measure(data: str, case: Case, seconds: float, extra: Sequence[str] = ()) -> Log:
    """One run, which has the machine for itself."""
    log, started, is_enough = Log(), time.perf_counter(), False
    with tempfile.TemporaryFile("w+") as errors, start(data, case, extra, errors) as process:
        try:
            for line in process.stdout or ():
                if line.startswith("{") and not is_enough:
                    log.read(json.loads(line), time.perf_counter() - started)
                    is_enough = log.seconds >= seconds
                    if is_enough:
                        process.terminate()
        except BaseException:
            process.kill()  # it has no end of its own
            raise
        process.wait()
        why = why_it_ended(process, errors)
    if (not is_enough and process.returncode) or not log.updates:
        raise RunError(why)
    return log


def measure_all(options: argparse.Namespace) -> list[Rounds]:
    """Every case that works; what goes wrong with another is told. Whoever stops it gets what there is."""
    rounds: dict[Case, Rounds] = {}
    with tempfile.TemporaryDirectory() as temporary, _own_caches(Path(temporary), is_cold=options.cold):
        folders = {0: options.data} if options.data else {
            size: str(write_folder(Path(temporary) / str(size), options.pairs, size)) for size in options.vocabulary}
        cases = [Case(*values) for values in product(options.arch, options.layers, options.max_tokens, folders,
                                                     options.precision, options.technique)]
        extra = [*options.extra, "--save-dir", str(Path(temporary) / "checkpoints")]
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            for case, log in (_in_turns if options.together else _one_by_one)(cases, folders, options, extra):
                if isinstance(log, RunError):
                    print(f"{case}: failed: {log}", file=sys.stderr)
                    continue
                rounds.setdefault(case, Rounds(case)).logs.append(log)
                print(f"{case}: {log.tokens / log.seconds:,.0f} target tokens/s, {log.peak_gib:.2f} GiB, warm-up "
                      f"{log.warm_up:.1f} s", file=sys.stderr)
        except KeyboardInterrupt:
            print("stopped: what was measured so far is shown", file=sys.stderr)
        finally:
            signal.signal(signal.SIGTERM, before)
    if not rounds:
        sys.exit("no run worked")
    return list(rounds.values())


Measured = Iterator[tuple[Case, Log | RunError]]


def _one_by_one(cases: Sequence[Case], folders: dict[int, str], options: argparse.Namespace, extra: Sequence[str]) -> Measured:
    for _, case in product(range(options.rounds), cases):
        try:
            yield case, measure(folders[case.vocabulary], case, options.seconds, extra)
        except RunError as error:
            yield case, error


def _in_turns(cases: Sequence[Case], folders: dict[int, str], options: argparse.Namespace, extra: Sequence[str]) -> Measured:
    from turns import Waiting

    with ExitStack() as stack:
        runs = [stack.enter_context(Waiting(folders[case.vocabulary], case, extra)) for case in cases]
        for run in runs:
            run.wait_until_warm()
        for number, run in product(range(options.rounds), runs):
            if run.error is None:
                log = run.turn(options.seconds)
                yield run.case, log if run.error is None else run.error
            elif number == 0:
                yield run.case, run.error


@contextmanager
def _own_caches(folder: Path, *, is_cold: bool) -> Iterator[None]:
    """Without what earlier commands compiled."""
    own = {name: str(folder / name) for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")} if is_cold else {}
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def ratio(figure: Callable[[Rounds], float], rounds: Rounds, among: Sequence[Rounds], **changes: Any) -> float | str:
    """A figure over that of the same case with some changes; nothing where that one did not work."""
    other = next((other for other in among if other.case == replace(rounds.case, **changes)), None)
    return "" if other is None else figure(rounds) / figure(other)


def words(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(word) for word in words(text)]


def some_of(allowed: Iterable[str]) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        if unknown := [word for word in words(text) if word not in allowed]:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(allowed)}")
        return words(text)

    return read


def new_parser(text: str | None, *, technique: str = "plain", max_tokens: str = "2048", layers: str = "",
               seconds: float = 8.0 if HAS_GPU else 4.0, rounds: int = 1) -> argparse.ArgumentParser:
    """All lists are given by comma, and every combination is measured."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=words, default="tiny", help="presets, by comma (default: tiny)")
    parser.add_argument("--layers", type=words, default=layers, help="layers of encoder and decoder, by comma: 6-6,18-18 "
                                                                     f"(default: {layers or 'the preset’s'})")
    parser.add_argument("--max-tokens", type=numbers, default=max_tokens, help=f"batch sizes, by comma (default: {max_tokens})")
    parser.add_argument("--precision", type=some_of(("fp32", "bf16", "fp16")), default="bf16" if HAS_GPU else "fp32",
                        help="fp32, bf16, fp16, by comma (default: bf16 on a GPU, else fp32)")
    parser.add_argument("--technique", type=some_of(TECHNIQUES), default=technique,
                        help=f"by comma, of {', '.join(TECHNIQUES)}; the first is the measure (default: {technique})")
    parser.add_argument("--data", help="data folder (default: made-up captions as long as Multi30k's)")
    parser.add_argument("--vocabulary", type=numbers, default="10000",
                        help="symbols of made-up data, by comma (default: 10000)")
    parser.add_argument("--pairs", type=int, default=29_000, help="sentence pairs of made-up data (default: 29000)")
    parser.add_argument("--seconds", type=float, default=seconds, help="to measure in each run, after its warm-up (default: "
                                                                       f"{seconds:g})")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"of which the best counts (default: {rounds})")
    parser.add_argument("--together", action="store_true", help="start all runs at once, and let them take turns when all are "
                                                                "warm: far sooner done; warm-up times mean nothing then")
    parser.add_argument("--cold", action="store_true", help="begin without what torch.compile has cached before")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    parser.add_argument("extra", nargs="*", help="further options for train, after --")
    return parser
