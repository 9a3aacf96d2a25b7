"""How fast `lamina serve` is, how long its clients wait, and whether anything grows or breaks: on the loopback interface only.

    python benchmarks/serve.py load latency
    python benchmarks/serve.py soak --soak-seconds 300 --checkpoint checkpoints/checkpoint_best.pt --data data

`load`: many clients (--clients) with one sentence at a time, all of them all the time, beside what `lamina generate
--batch-size 64` does in a warm process (on a CPU with as many processes as threads, OMP_NUM_THREADS, on both sides); the two
take turns, round by round, and the best round counts. Both translate the same sentences, and all answers are compared. Besides
sentences per second there are sentences per CPU second, of all processes of each side, which other work on the machine
distorts less.
`latency`: clients that come at random times, at a share (--share) of that speed. `soak`: likewise, for minutes, at two depths,
while others disconnect, or send what is malformed or too large; it looks at memory and file descriptors, at each answer, and at
the exit status. It exits with 1 if anything of that is wrong.

A model with random weights seldom says </s>: without --checkpoint every translation is as long as its source. Then all of a
sorted batch of `generate` end together; with a trained model, and with other sentences, it waits for its last ones.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import multiprocessing
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from loopback import Connection, Server, cpu_seconds
from made_up import made_up_checkpoint, write_folder
from table import machine, show

import lamina
from lamina.api.outputs import search_config
from lamina.checkpoint.format import save_checkpoint
from lamina.data.corpus import find_languages, load_dictionaries, open_corpus
from lamina.decode.batched_search import search_rows
from lamina.decode.search import Search
from lamina.decode.search_workers import search_workers
from lamina.threads import settle_threads

BATCH_SIZE = 64
RANDOM_LENGTHS = {"max_len_a": 1.0, "max_len_b": 0}
BODY_KIB = 256  # the server's limit, which the large bodies of a soak exceed
LIMITS = ["--max-body-kib", str(BODY_KIB), "--queue", "100000", "--timeout", "100"]
WARM_UP_SHARE = 0.2  # of a soak, before memory counts: caches fill
GROWTH_MIB = 32.0  # and 5 %, that memory may grow by in what follows
GROWTH_FILES = 8
MALFORMED = (b"{", b"[1, 2]", b'{"text": NaN}', b"\xff\xfe", b'{"text": 5, "target_lang": "en"}', b'{"target_lang": "en"}',
             b"[" * 2000, b'{"text": ["a"], "target_lang": "en", "beam": 0}')


# -- what there is to translate, and what must come out

@dataclass
class Work:
    path: str
    lines: list[str]
    options: dict[str, Any]  # of the search
    precision: str

    @property
    def words(self) -> list[str]:
        """What the command that serves it is told."""
        search = [word for name, value in self.options.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        return [f"de-en={self.path}", *search, *(["--cpu"] if self.precision == "cpu" else [f"--{self.precision}"]), *LIMITS]


def prepared(options: argparse.Namespace, folder: Path) -> Work:
    data = Path(options.data or write_folder(folder / "data", 1000, num_test=options.sentences))
    languages = find_languages(data, options.gen_subset, None, None)
    source, target = load_dictionaries(data, languages)
    corpus = open_corpus(data, options.gen_subset, languages, (len(source), len(target)))
    lines = [" ".join(source.decode(corpus[number].source.tolist())) for number in range(min(options.sentences, len(corpus)))]
    path = options.checkpoint
    if path is None:
        path = str(folder / "model.pt")
        save_checkpoint(Path(path), made_up_checkpoint(options.arch, source.to_text(), len(source)))
    return Work(path, [line.removesuffix(" </s>") for line in lines],
                {"beam": options.beam, **({} if options.checkpoint else RANDOM_LENGTHS)}, options.precision)


def baseline(turns: Pipe, work: Work) -> None:
    """A process that translates, whenever it is asked, as `lamina generate` does; its turns are depths."""
    settle_threads()
    is_on_cpu = work.precision == "cpu"
    model = lamina.load(work.path, device="cpu" if is_on_cpu else "cuda", dtype="fp32" if is_on_cpu else work.precision)
    rows = [model.encode_source(line) for line in work.lines]
    search = Search(model.models, search_config(**work.options), vocabulary=model.vocabularies[1])
    searches = {depth: search.at(model.active_layers(depth)) for depth in ("full", "half")}
    with search_workers(list(searches.values()), len(rows)) as workers:
        while (depth := turns.recv()) is not None:
            started, cpu = time.perf_counter(), cpu_seconds(os.getpid())
            texts = [""] * len(rows)
            for found in search_rows(searches[depth], rows, device=model.device, batch_size=BATCH_SIZE if is_on_cpu else None,
                                     workers=workers):
                texts[found.index] = model.translation(found.hypotheses, rows[found.index].tolist()).text
            turns.send((time.perf_counter() - started, cpu_seconds(os.getpid()) - cpu, texts))


# -- clients

@dataclass
class Tally:
    """What clients saw."""

    seconds: list[float] = field(default_factory=list)
    wrong: int = 0  # another translation than that of `generate`
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def number(self) -> int:
        return len(self.seconds) + self.failed.total()

    def percentile(self, share: float) -> float:
        ordered = sorted(self.seconds)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


async def ask(connection: Connection, tally: Tally, line: str, expected: str, depth: str) -> None:
    started = time.perf_counter()
    values = {"text": [line], "target_lang": "en", "split_sentences": "0", "depth": depth}
    try:
        status, found = await connection.ask("/v2/translate", values)
    except (OSError, EOFError, asyncio.TimeoutError) as error:
        tally.failed[type(error).__name__] += 1
        connection.close()
        return
    if status != 200:
        tally.failed[str(status)] += 1
        return
    tally.seconds.append(time.perf_counter() - started)
    tally.wrong += found["translations"][0]["text"] != expected


async def keep_asking(server: Server, lines: Sequence[str], expected: Sequence[str], num_clients: int,
                      ) -> tuple[Tally, tuple[float, float]]:
    """Each client asks for the next sentence as soon as it has its answer, and all are there all the time: what counts is the
    time and CPU time of as many answers as there are lines, after one for each client."""
    tally, places, marks = Tally(), itertools.count(), []

    def note() -> None:
        marks.append((time.perf_counter(), server.cpu_seconds()))

    async def client() -> None:
        connection = Connection(server)
        while len(marks) < 2:
            place = next(places) % len(lines)
            await ask(connection, tally, lines[place], expected[place], "full")
            if len(marks) < 2 and tally.number >= num_clients + len(lines) * len(marks):
                note()
        connection.close()

    await asyncio.gather(*(client() for _ in range(num_clients)))
    (started, before), (ended, after) = marks
    return tally, (ended - started, after - before)


async def come_at_random(server: Server, lines: Sequence[str], expected: dict[str, Sequence[str]], *, rate: float,
                         seconds: float, while_so: Callable[[], bool] = lambda: True) -> Tally:
    """So many a second, in the mean, whether or not those before have their answers."""
    tally, generator, free, tasks = Tally(), random.Random(1), [], set()

    async def client(place: int, depth: str) -> None:
        connection = free.pop() if free else Connection(server)
        await ask(connection, tally, lines[place], expected[depth][place], depth)
        free.append(connection)

    end, due = time.perf_counter() + seconds, time.perf_counter()
    while due < end and while_so():
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(client(generator.randrange(len(lines)), generator.choice(list(expected))))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        due += generator.expovariate(rate)
    await asyncio.gather(*tasks)
    for connection in free:
        connection.close()
    return tally


# -- what is measured

def load(work: Work, server: Server, turns: Pipe, options: argparse.Namespace) -> tuple[list[dict[str, Any]], Tally]:
    best: dict[str, tuple[float, float]] = {}
    tally, waits = Tally(), Tally()
    for round_number in range(options.rounds + 1):  # the first warms up
        turns.send("full")
        wall, cpu, expected = turns.recv()
        own, served = asyncio.run(keep_asking(server, work.lines, expected, options.clients))
        figures = {"generate": (wall, cpu), "serve": served}
        tally.wrong += own.wrong
        tally.failed.update(own.failed)
        if round_number:
            waits.seconds += own.seconds
            best = {name: (min(own[0], figures[name][0]), min(own[1], figures[name][1]))
                    for name, own in (best or figures).items()}
    number, rows = len(work.lines), []
    for name, (wall, cpu) in best.items():
        theirs = best["generate"]
        rows.append({"what": name if name == "generate" else f"serve, {options.clients} clients", "sentences/s": number / wall,
                     "of generate": theirs[0] / wall, "sentences per CPU s": number / cpu, "of generate's": theirs[1] / cpu})
    rows[-1] |= {"p50 s": waits.percentile(0.5), "p99 s": waits.percentile(0.99), "wrong": tally.wrong,
                 "failed": tally.failed.total()}
    return rows, tally


def latency(work: Work, server: Server, expected: dict[str, Sequence[str]], rate: float,
            options: argparse.Namespace) -> tuple[list[dict[str, Any]], Tally]:
    own = asyncio.run(come_at_random(server, work.lines, {"full": expected["full"]}, rate=options.share * rate,
                                     seconds=options.seconds))
    return [{"what": f"serve at {options.share:.0%} load", "sentences/s": len(own.seconds) / options.seconds,
             "p50 s": own.percentile(0.5), "p99 s": own.percentile(0.99), "wrong": own.wrong,
             "failed": own.failed.total()}], own


async def disconnect(server: Server, work: Work, generator: random.Random) -> str:
    """Ask, and leave before the answer."""
    connection = Connection(server)
    body = json.dumps({"text": [generator.choice(work.lines)], "target_lang": "en"}).encode()
    await connection.send("/v2/translate", body)
    await asyncio.sleep(generator.random() * 0.05)
    connection.close()
    return "left"


async def malformed(server: Server, work: Work, generator: random.Random) -> str:
    connection = Connection(server)
    await connection.send("/v2/translate", generator.choice(MALFORMED))
    status, _ = await asyncio.wait_for(connection.answer(), 60)
    connection.close()
    return str(status)


async def oversized(server: Server, work: Work, generator: random.Random) -> str:
    connection = Connection(server)
    try:
        await connection.send("/v2/translate", b" " * (BODY_KIB + 64) * 1024)
        status, _ = await asyncio.wait_for(connection.answer(), 60)
    finally:
        connection.close()
    return str(status)


ABUSE: dict[str, tuple[Callable[..., Awaitable[str]], str]] = {
    "disconnecting": (disconnect, "left"), "malformed": (malformed, "400"), "oversized": (oversized, "413")}


async def abuse(server: Server, work: Work, numbers: dict[str, int], seconds: float) -> Counter[str]:
    """All kinds mixed, spread over the time. What each kind saw, and how often."""
    generator, seen = random.Random(2), Counter[str]()
    kinds = [kind for kind, number in numbers.items() for _ in range(number)]
    generator.shuffle(kinds)
    started = time.perf_counter()

    async def one(kind: str) -> None:
        try:
            seen[f"{kind}: {await ABUSE[kind][0](server, work, generator)}"] += 1
        except (OSError, EOFError, asyncio.TimeoutError) as error:
            seen[f"{kind}: {type(error).__name__}"] += 1

    tasks = []
    for number, kind in enumerate(kinds):
        await asyncio.sleep(max(0.0, started + seconds * number / len(kinds) - time.perf_counter()))
        tasks.append(asyncio.create_task(one(kind)))
    await asyncio.gather(*tasks)
    return seen


def soak(work: Work, server: Server, expected: dict[str, Sequence[str]], rate: float,
         options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    """The row, and what is wrong."""
    samples: list[tuple[float, float, int]] = []
    numbers = {"disconnecting": options.disconnecting, "malformed": options.malformed, "oversized": options.oversized}

    async def watch() -> None:
        started = time.perf_counter()
        while True:
            samples.append((time.perf_counter() - started, server.resident_mib(), server.num_files()))
            await asyncio.sleep(min(1.0, options.soak_seconds / 20))

    async def run() -> tuple[Tally, Counter[str]]:
        watcher = asyncio.create_task(watch())
        try:
            return await asyncio.gather(  # type: ignore[return-value]
                come_at_random(server, work.lines, expected, rate=options.share * rate, seconds=options.soak_seconds,
                               while_so=lambda: server.is_alive),
                # Before the end, so that what they leave behind would show.
                abuse(server, work, numbers, 0.8 * options.soak_seconds))
        finally:
            watcher.cancel()

    tally, seen = asyncio.run(run())
    time.sleep(1.0)
    settled = [own for own in samples if own[0] >= WARM_UP_SHARE * samples[-1][0]]
    first, last = ([own[1] for own in part] for part in (settled[: len(settled) // 4 + 1], settled[-len(settled) // 4 - 1 :]))
    # Idle ends against idle: clients that are there take descriptors.
    files = (samples[0][2], server.num_files())
    as_meant = {kind: seen[f"{kind}: {status}"] for kind, (_, status) in ABUSE.items()}
    row = {"what": f"soak, {options.soak_seconds:g} s", "sentences/s": len(tally.seconds) / options.soak_seconds,
           "p50 s": tally.percentile(0.5), "p99 s": tally.percentile(0.99), "wrong": tally.wrong,
           "failed": tally.failed.total(), **as_meant,
           "MiB, first": max(first), "MiB, last": max(last), "files, before": files[0], "files, after": files[1]}
    problems = [f"{number} {kind} clients, and {as_meant[kind]} saw what they should see ({dict(seen)})"
                for kind, number in numbers.items() if as_meant[kind] != number]
    if max(last) > 1.05 * max(first) + GROWTH_MIB:
        problems.append(f"memory grew from {max(first):.0f} to {max(last):.0f} MiB")
    if files[1] > files[0] + GROWTH_FILES:
        problems.append(f"file descriptors grew from {files[0]} to {files[1]}")
    if not server.is_alive:
        problems.append("the server ended")
    return [row], problems + complaints(tally, work)


def complaints(tally: Tally, work: Work) -> list[str]:
    found = [f"{tally.failed.total()} requests failed: {dict(tally.failed)}"] if tally.failed else []
    # Sums in half precision are rounded in another order when others share the batch: counted, not wrong.
    if tally.wrong and work.precision in ("cpu", "fp32"):
        found.append(f"{tally.wrong} answers differ from those of generate")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["load", "latency", "soak"], metavar="WHAT",
                        help="load, latency, soak (default: all three)")
    parser.add_argument("--data", help="data folder (default: made-up captions, 10k vocabulary)")
    parser.add_argument("--gen-subset", default="test", help="split to translate (default: test)")
    parser.add_argument("--checkpoint", help="model from de to en, of any languages (default: random weights of --arch)")
    parser.add_argument("--arch", default="transformer_iwslt_de_en", help="preset (default: transformer_iwslt_de_en)")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--precision", default="fp16" if torch.cuda.is_available() else "cpu",
                        help="fp32, bf16 or fp16 on a GPU, cpu for float32 on a CPU")
    parser.add_argument("--sentences", type=int, default=1000, help="how many (default: 1000)")
    parser.add_argument("--clients", type=int, default=64, help="of load (default: 64)")
    parser.add_argument("--rounds", type=int, default=3, help="of load, after one that warms up (default: 3)")
    parser.add_argument("--share", type=float, default=0.5, help="of the full speed, for latency and soak (default: 0.5)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of latency (default: 60)")
    parser.add_argument("--soak-seconds", type=float, default=300.0, help="(default: 300)")
    parser.add_argument("--disconnecting", type=int, default=1000, help="clients of a soak that leave (default: 1000)")
    parser.add_argument("--malformed", type=int, default=200, help="requests of a soak (default: 200)")
    parser.add_argument("--oversized", type=int, default=200, help="requests of a soak (default: 200)")
    parser.add_argument("--json", metavar="FILE", help="write the rows there too")
    options = parser.parse_args()
    if unknown := set(options.what) - {"load", "latency", "soak"}:
        parser.error(f"there is no {' or '.join(sorted(unknown))}; there are load, latency and soak")
    with tempfile.TemporaryDirectory() as temporary:
        rows, problems = measured(prepared(options, Path(temporary)), options)
    print(machine())
    show(rows, options.json)
    for problem in problems:
        print(f"wrong: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)


def measured(work: Work, options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[str]]:
    turns, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=baseline, args=(theirs, work))
    process.start()
    theirs.close()
    server, rows, problems = Server(work.words), [], []
    try:
        expected = {}
        for depth in ("full", "half"):
            turns.send(depth)
            expected[depth] = turns.recv()[2]
        rows, tally = load(work, server, turns, options)
        rate = rows[-1]["sentences/s"]
        problems += complaints(tally, work)
        turns.send(None)
        process.join()
        if "latency" in options.what:
            own, tally = latency(work, server, expected, rate, options)
            rows += own
            problems += complaints(tally, work)
        if "soak" in options.what:
            own, found = soak(work, server, expected, rate, options)
            rows += own
            problems += found
    finally:
        status = server.stop()
        process.kill()
    if status:
        problems.append(f"after SIGTERM the server ended with status {status}")
    return rows, problems


if __name__ == "__main__":
    main()
