"""Runs the stages of one run, in a process of its own: `python -m lamina.recipes.worker FOLDER`.

One process for all stages of a run, since loading torch and waking a GPU take seconds and most stages do too; one for each run,
since a crash, a full GPU or a graph that was captured must not reach the next. FOLDER/plan.json says what to do; stages.json
keeps what is done, logs/ what was said, outcome.json how it ended.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from lamina.errors import DivergenceError, LaminaError, StopSignal
from lamina.files import read_json, write_json
from lamina.recipes.plan import Stage

PLAN_NAME, STAGES_NAME, OUTCOME_NAME, LOGS_NAME = "plan.json", "stages.json", "outcome.json", "logs"
INTERRUPTED = "interrupted"  # a stage, and the seconds that it has had
SECONDS_BETWEEN_LOOKS = 30.0
SHOWN_CHARACTERS = 150


def main(folder: Path) -> int:
    _live_and_die_with_parent()
    plan = read_json(folder / PLAN_NAME)
    stages = [Stage(item["name"], tuple(item["words"]), item["output"], tuple(item["makes"])) for item in plan["stages"]]
    done: dict[str, Any] = read_records(folder)
    outcome = {"status": "done", "message": ""}
    for stage in stages:
        if is_done(stage, done):
            continue
        started = time.monotonic() - done.pop(INTERRUPTED, {}).get(stage.name, 0.0)
        with _logged(folder, stage, plan["title"]):
            outcome = _outcome(stage)
        seconds = round(time.monotonic() - started, 2)
        # A training run that is stopped and resumed has taken as long as all its sittings.
        done |= {stage.name: {"seconds": seconds, "line": stage.line}} if outcome["status"] == "done" else {
            INTERRUPTED: {stage.name: seconds}}
        write_json(folder / STAGES_NAME, done)
        if outcome["status"] != "done":
            break
        _free_memory()
    write_json(folder / OUTCOME_NAME, {**outcome, "hardware": hardware()})
    return 0


def _outcome(stage: Stage) -> dict[str, str]:
    from lamina.command_line import execute

    try:
        execute(list(stage.words))
    except StopSignal as stop:
        return {"status": "stopped", "message": str(stop), "stage": stage.name}
    except DivergenceError as error:
        return {"status": "diverged", "message": str(error), "stage": stage.name}
    except LaminaError as error:
        return {"status": "failed", "message": str(error), "stage": stage.name}
    except Exception as error:  # a bug of ours ends this run, not the others; the log has all of it
        import traceback

        traceback.print_exc()
        return {"status": "failed", "message": f"{type(error).__name__}: {error}", "stage": stage.name}
    return {"status": "done", "message": ""}


def read_records(folder: Path) -> dict[str, Any]:
    try:
        records = read_json(folder / STAGES_NAME)
    except (OSError, ValueError):
        return {}
    return records if isinstance(records, dict) else {}


def is_done(stage: Stage, records: dict[str, Any]) -> bool:
    return stage.name in records and all(Path(path).exists() for path in stage.makes)


def log_path(folder: Path, stage_name: str) -> Path:
    return folder / LOGS_NAME / f"{stage_name.replace(' ', '.')}.log"


@contextmanager
def _logged(folder: Path, stage: Stage, title: str) -> Iterator[None]:
    """What the stage says goes to its log, also what libraries say; standard output goes where the plan wants it."""
    log = log_path(folder, stage.name)
    log.parent.mkdir(parents=True, exist_ok=True)
    output = Path(stage.output).with_name(f".{Path(stage.output).name}.part") if stage.output else None
    ended = threading.Event()
    with log.open("ab") as file, os.fdopen(os.dup(2), "w") as shown:
        print(f"| {title}: {stage.name}", file=shown, flush=True)
        print(f"$ {stage.line}", file=open(file.fileno(), "w", closefd=False), flush=True)  # noqa: SIM115
        size = log.stat().st_size
        watcher = threading.Thread(target=_show_progress, args=(log, size, title, stage.name, shown, ended), daemon=True)
        watcher.start()
        with _redirected(file.fileno(), output):
            yield
        ended.set()
        watcher.join()
    if output is not None and output.exists():
        os.replace(output, stage.output)


@contextmanager
def _redirected(log: int, output: Path | None) -> Iterator[None]:
    """Both standard streams of the process, for a while."""
    sys.stdout.flush()
    sys.stderr.flush()
    former = os.dup(1), os.dup(2)
    target = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666) if output is not None else os.dup(log)
    try:
        os.dup2(target, 1)
        os.dup2(log, 2)
        with (open(1, "w", buffering=1, encoding="utf-8", closefd=False) as stdout,
              open(2, "w", buffering=1, encoding="utf-8", closefd=False) as stderr,
              redirect_stdout(stdout), redirect_stderr(stderr)):
            yield
    finally:
        for number, descriptor in zip((1, 2), former, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)
        os.close(target)


def _show_progress(log: Path, size: int, title: str, stage: str, shown: Any, ended: threading.Event) -> None:
    while not ended.wait(SECONDS_BETWEEN_LOOKS):
        with log.open("rb") as file:
            file.seek(max(size, log.stat().st_size - 4096))
            lines = file.read().decode("utf-8", errors="replace").splitlines()
        if lines:
            print(f"|   {title}, {stage}: {lines[-1][:SHOWN_CHARACTERS]}", file=shown, flush=True)


def _free_memory() -> None:
    torch = sys.modules.get("torch")
    gc.collect()
    if torch is not None and torch.cuda.is_available():
        torch.cuda.empty_cache()


def hardware() -> str:
    """The GPU, or the CPU, without the machine's name."""
    import platform

    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        number = torch.cuda.device_count()
        return f"{f'{number} x ' if number > 1 else ''}{torch.cuda.get_device_name(0)}"
    return f"CPU ({platform.machine()}, {os.cpu_count()} cores)"


def _live_and_die_with_parent() -> None:
    # Ctrl-C and a closed terminal are the parent's to answer: it tells us by SIGTERM. SIGUSR1 means something in training only.
    for name in ("SIGINT", "SIGHUP", "SIGUSR1"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()


def _end_with_parent(parent: int) -> None:
    """A signal that kills the parent outright is meant for us too; training takes it as a wish to stop, and saves."""
    while os.getppid() == parent:
        time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
