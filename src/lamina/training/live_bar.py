"""The live bar of a run: in a terminal by rich, in a notebook as a line of HTML. It counts to the end of the run."""

from __future__ import annotations

import html
import sys
import time
from collections import deque
from datetime import timedelta
from typing import Any, Protocol

SECONDS_BETWEEN_FRAMES = 0.25  # in a notebook, whose page is not ours
# Speed is a mean over about so many seconds.
SECONDS_OF_SPEED = 30.0


class LiveBar(Protocol):
    """What is done of a total, a label before it and figures behind it."""

    def show(self, label: str, done: float, total: float, figures: str) -> None: ...

    def close(self) -> None: ...


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this; asked without importing anything of it."""
    shell = sys.modules.get("IPython")
    running = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    return running is not None and hasattr(running, "kernel")


def open_bar() -> LiveBar:
    return NotebookBar() if in_notebook() else TerminalBar()


class TimeLeft:
    """How long what is left will take at the latest speed."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float]] = deque()  # seconds, amount done

    def seconds(self, done: float, total: float) -> float | None:
        now = time.monotonic()
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > SECONDS_OF_SPEED:
            self._seen.popleft()
        first, before = self._seen[0]
        if now <= first or done <= before:
            return None
        return (total - done) * (now - first) / (done - before)


class TerminalBar:
    """rich's, on stderr."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        # What is printed goes above the bar, unless it goes elsewhere: into a file, it must not be taken away from there.
        self._bars = Progress(TextColumn("{task.description}"), BarColumn(bar_width=16), MofNCompleteColumn(),
                              TextColumn("{task.fields[left]}"), TextColumn("{task.fields[figures]}"),
                              console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty())
        self._task = self._bars.add_task("", total=None, left="-:--:--", figures="")
        self._left = TimeLeft()
        self._bars.start()

    def show(self, label: str, done: float, total: float, figures: str) -> None:
        self._bars.update(self._task, description=label, completed=done, total=total, figures=figures,
                          left=clock(self._left.seconds(done, total)))

    def close(self) -> None:
        self._bars.stop()


class NotebookBar:
    """An element of the page that is written again and again; without ipywidgets, which may not be there."""

    def __init__(self) -> None:
        from IPython.display import HTML, display

        self._html = HTML
        self._handle: Any = display(HTML(""), display_id=True)
        self._left = TimeLeft()
        self._shown = 0.0

    def show(self, label: str, done: float, total: float, figures: str) -> None:
        left = clock(self._left.seconds(done, total))
        now = time.monotonic()
        if now - self._shown < SECONDS_BETWEEN_FRAMES and done < total:
            return
        self._shown = now
        text = f"{label} {done:.0f}/{total:.0f} {left} {figures}"
        self._handle.update(self._html(f'<progress value="{done:.0f}" max="{total:.0f}" style="width: 12em"></progress> '
                                       f"<code>{html.escape(text)}</code>"))

    def close(self) -> None:
        """What it shows last stays: a notebook is read afterwards."""


def clock(seconds: float | None) -> str:
    return "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
