"""Where the time of a command goes, from its start to its end: imports, the GPU's context, compiling, capturing, searching.

    python benchmarks/stages.py generate data-bin/iwslt --path checkpoints/checkpoint_best.pt --quiet
    python benchmarks/stages.py --shortest 0.5 train data-bin/iwslt --arch tiny --max-tokens 4096 --lr 0.001 --max-update 1

A thread looks at the stacks of all others every few milliseconds. The tree has the functions that took longer than
`--shortest` seconds, callees below their callers, in the order in which they were first seen: from, to, seconds. The main
thread comes first; others (autograd's, for one, which compiles backward passes) have a tree each. Their times include waiting.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType

EVERY = 0.004  # seconds
# A hop that only passes a call on is not worth a line of its own.
PASSED_ON = 0.9
HIDDEN = ("importlib", str(Path(__file__).name))
ROOTS = (f"{Path(threading.__file__).parent}/", "site-packages/", "dist-packages/", "/src/")


@dataclass
class Node:
    """A function, as it was called from one place."""

    first: float = 0.0
    last: float = 0.0
    seconds: float = 0.0
    callees: dict[str, Node] = field(default_factory=dict)


def name_of(code: CodeType) -> str:
    path = code.co_filename
    for root in ROOTS:
        path = path.rpartition(root)[2]
    return f"{path}:{code.co_name}"


def stack_of(frame: FrameType | None) -> list[str]:
    """Outermost first."""
    names = []
    while frame is not None:
        if not any(hidden in frame.f_code.co_filename for hidden in HIDDEN):
            names.append(name_of(frame.f_code))
        frame = frame.f_back
    return names[::-1]


class Sampler(threading.Thread):
    """Time goes to where a thread is found after it: what keeps the interpreter's lock is found when it returns."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.roots: dict[int, Node] = {threading.main_thread().ident or 0: Node()}  # by thread, the main one first
        self._is_over = threading.Event()

    def run(self) -> None:
        started = before = time.perf_counter()
        while not self._is_over.wait(EVERY):
            stacks = [(thread, stack_of(frame)) for thread, frame in sys._current_frames().items() if thread != self.ident]
            now = time.perf_counter()
            for thread, names in stacks:
                node = self.roots.setdefault(thread, Node())
                for name in names:
                    node = node.callees.setdefault(name, Node(first=before - started))
                    node.seconds += now - before
                    node.last = now - started
            before = now

    def stop(self) -> None:
        self._is_over.set()
        self.join()


def lines(node: Node, shortest: float, depth: int = 0) -> list[str]:
    found = []
    for name, own in sorted(node.callees.items(), key=lambda item: item[1].first):
        if own.seconds < shortest:
            continue
        longest = max((callee.seconds for callee in own.callees.values()), default=0.0)
        if longest > PASSED_ON * own.seconds:
            found += lines(own, shortest, depth)
            continue
        found.append(f"{own.first:7.2f} {own.last:7.2f} {own.seconds:7.2f}  {'  ' * depth}{name}")
        found += lines(own, shortest, depth + 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shortest", type=float, default=0.1, help="seconds (default: 0.1)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="as it follows `lamina`")
    options = parser.parse_args()
    started, sampler = time.perf_counter(), Sampler()
    sampler.start()
    try:
        from lamina.cli import main as run_lamina

        code = run_lamina(options.command)
    finally:
        sampler.stop()
        # On standard error, since a command's results go to standard output.
        title = f"{time.perf_counter() - started:.2f} s to the end of `lamina {' '.join(options.command[:2])}`"
        main_tree, *others = (lines(root, options.shortest) for root in sampler.roots.values())
        print(title, *main_tree, sep="\n", file=sys.stderr)
        for own in filter(None, others):
            print("another thread", *own, sep="\n", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
