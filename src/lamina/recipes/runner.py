"""Runs what is planned: the corpus once, then every run in a process of its own, and a row of results for each."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lamina import console, provenance
from lamina.command_line import execute
from lamina.distributed.signals import StopWish
from lamina.errors import ConfigError, DataError, LaminaError, StopSignal
from lamina.files import read_json, whole_file, write_json
from lamina.plug_ins import USER_DIR
from lamina.preprocess.workers import Workers, available_cores
from lamina.recipes.dataset import check_places
from lamina.recipes.plan import Places, RunPlan, Stage, check_stages, figures_path, plan_comparisons, plan_data, plan_run
from lamina.recipes.prepare import REPORT_NAME
from lamina.recipes.recipe_file import Recipe
from lamina.recipes.results import (
    COMPARISON,
    FILE_NAME,
    MEASURED,
    RUN,
    SETTLED,
    TABLE_NAME,
    append_rows,
    latest,
    read_rows,
    render,
)
from lamina.recipes.run_figures import comparison_figures, decoding_speed, score_figures, training_figures
from lamina.recipes.worker import OUTCOME_NAME, PLAN_NAME, STAGES_NAME, is_done, log_path, read_records

ROWS_NAME = "rows.json"
HEAL_SUFFIX = ".heal"  # of the folder that `lamina prune --heal` trains in; pruning/heal.py says the same
# How long a run may take to save its state when it is told to stop.
SECONDS_TO_SAVE = 120.0
SECONDS_BETWEEN_LOOKS = 0.2


@dataclass(frozen=True)
class Wishes:
    """How to go about it."""

    runs: tuple[tuple[str, int], ...]  # variant, seed
    budget: float = 1.0
    jobs: int = 1
    kept: str = "model"
    train_flags: tuple[str, ...] = ()
    workers: int | None = None
    command: str = ""  # as it was typed
    commit: str = ""
    user_dir: tuple[str, ...] = ()  # parts of the person's own, for every command


class Stopping:
    """Why no further stage should begin: time is up, or a signal came."""

    def __init__(self, minutes: float, wish: StopWish) -> None:
        self.ends_at = time.monotonic() + 60 * minutes if minutes else math.inf
        self.wish = wish

    @property
    def is_due(self) -> bool:
        return self.wish.signal is not None or time.monotonic() >= self.ends_at


class Runner:
    def __init__(self, recipe: Recipe, places: Places, wishes: Wishes, stopping: Stopping) -> None:
        self.recipe, self.places, self.wishes, self.stopping = recipe, places, wishes, stopping
        self.data_stages, self.plans = plan_all(recipe, places, wishes)
        self.results = places.out / FILE_NAME
        self._lock = threading.Lock()  # of the results file, between jobs

    def run(self) -> bool:
        """Whether all of it is settled: done, or known to diverge."""
        open_plans = [plan for plan in self.plans if not self._take_settled(plan)]
        num_settled = len(self.plans) - len(open_plans)
        if num_settled:
            console.notice(f"{self.recipe.name}: {num_settled} of {len(self.plans)} runs are there already")
        if open_plans and not self._make_data():
            return False
        with ThreadPoolExecutor(self.wishes.jobs) as pool:
            futures: list[Future[None]] = [pool.submit(self._run_one, plan) for plan in open_plans]
            for future in as_completed(futures):
                future.result()
        is_compared = self._compare()
        with whole_file(self.places.out / TABLE_NAME) as part:
            part.write_text("# Results\n\n" + render(read_rows(self.results)), encoding="utf-8")
        return is_compared and all(self._take_settled(plan) for plan in self.plans)

    # -- the corpus

    def _make_data(self) -> bool:
        data = self.recipe.data
        folder, text = self.places.work / "data" / data.name, self.places.text(data)
        records = read_records(folder)
        if text.exists():
            if _read(text / REPORT_NAME).get("digest") != data.digest:
                raise DataError(f"{text} was not made from the corpus {data.name} as it is described now. Name another folder "
                                "with --work, or remove that one.")
            # Text appears whole or not at all: if only the note of it was lost, it is made all the same.
            records.setdefault("prepare", {"seconds": 0.0})
            write_json(folder / STAGES_NAME, records)
        if all(is_done(stage, records) for stage in self.data_stages):
            return True
        outcome = self._work(folder, f"corpus {data.name}", self.data_stages, data.digest)
        if outcome["status"] == "failed":
            raise DataError(f"corpus {data.name}, {outcome.get('stage')}: {outcome['message']} (log: "
                            f"{log_path(folder, str(outcome.get('stage')))})")
        return outcome["status"] == "done"

    # -- runs

    def _take_settled(self, plan: RunPlan) -> bool:
        """A run whose rows are there; they are put into the results file where that lacks them."""
        if _read(plan.folder / PLAN_NAME).get("digest", plan.digest) != plan.digest:
            # Also one that was stopped: to resume it under other settings would be neither this run nor that.
            raise ConfigError(f"{plan.folder} holds a run with other settings. Name another --out, or remove that folder and "
                              f"{plan.checkpoints} to run it again.")
        rows = _read(plan.folder / ROWS_NAME).get("rows", [])
        if not rows or any(row["status"] not in SETTLED for row in rows):
            return False
        with self._lock:
            append_rows(self.results, rows)
        return True

    def _run_one(self, plan: RunPlan) -> None:
        if self.stopping.is_due:
            return
        outcome = self._work(plan.folder, plan.title, plan.stages, plan.digest)
        rows = rows_of(plan, outcome, self.recipe, self.wishes)
        write_json(plan.folder / ROWS_NAME, {"rows": rows})
        with self._lock:
            append_rows(self.results, rows)
        if outcome["status"] == "stopped":
            console.notice(f"{plan.title}: stopped; the same command resumes from there")
            return
        status = rows[0]["status"]
        if status in SETTLED:
            self._tidy(plan)
        figures = ", ".join(f"{name} {value:g}" for name, value in rows[0]["figures"].items())
        console.notice(f"{plan.title}: {status}{f', {figures}' if figures else ''}"
                       + (f" ({outcome['message']})" if outcome["message"] else ""))

    def _tidy(self, plan: RunPlan) -> None:
        if self.wishes.kept == "all" or not plan.checkpoints.is_dir():
            return
        if self.wishes.kept == "none":
            shutil.rmtree(plan.checkpoints, ignore_errors=True)
            return
        for path in plan.checkpoints.iterdir():
            if path.name in plan.keeps:
                continue
            if path.is_file():
                path.unlink(missing_ok=True)
            elif path.suffix == HEAL_SUFFIX:
                shutil.rmtree(path, ignore_errors=True)
        from lamina.checkpoint.runs import shards_without_name  # here: it imports torch

        for path in shards_without_name(plan.checkpoints, [plan.checkpoints / name for name in plan.keeps]):
            shutil.rmtree(path, ignore_errors=True)

    def _work(self, folder: Path, title: str, stages: Sequence[Stage], digest: str) -> dict[str, Any]:
        """Let a process work on the stages until it is through or we are to stop."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / PLAN_NAME, {"title": title, "digest": digest, "stages": [asdict(stage) for stage in stages]})
        outcome_path = folder / OUTCOME_NAME
        outcome_path.unlink(missing_ok=True)
        # A session of its own: Ctrl-C is heard here, and passed on once.
        process = subprocess.Popen([sys.executable, "-m", "lamina.recipes.worker", str(folder)], stdin=subprocess.DEVNULL,
                                   env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                                   start_new_session=True)
        told_at = math.inf
        while process.poll() is None:
            if self.stopping.is_due and told_at == math.inf:
                told_at = time.monotonic()
                process.send_signal(signal.SIGTERM)
            if time.monotonic() - told_at > SECONDS_TO_SAVE:
                process.kill()
            time.sleep(SECONDS_BETWEEN_LOOKS)
        if outcome := _read(outcome_path):
            return outcome
        if self.stopping.is_due:
            return {"status": "stopped", "message": ""}
        return {"status": "failed",
                "message": f"the process ended with status {process.returncode} and no word; its logs are in {folder}"}

    # -- comparisons

    def _baselines(self) -> list[RunPlan]:
        """Of all seeds, also where the baseline was run by another command."""
        recipe, wishes = self.recipe, self.wishes
        return [plan_run(recipe, recipe.variants[recipe.baseline], seed, self.places, budget=wishes.budget,
                         train_flags=wishes.train_flags)
                for seed in dict.fromkeys(plan.seed for plan in self.plans)] if recipe.baseline else []

    def _compare(self) -> bool:
        """Every variant with the baseline of its seed, sentence by sentence; whether time sufficed."""
        if not self.places.text(self.recipe.data).is_dir():
            return True  # all runs were there, and what they are compared with is elsewhere
        known = {(row["variant"], row["cut"], row["seed"], row["test"], row["digest"])
                 for row in read_rows(self.results) if row["kind"] == COMPARISON and row["recipe"] == self.recipe.name}
        rows: list[dict[str, Any]] = []
        stages: list[Stage] = []
        for found in plan_comparisons(self.recipe, self.plans, self.places, self._baselines()):
            own, other = found.own, found.other
            digest = f"{found.plan.digest}-{found.base.digest}"
            is_known = (found.plan.variant, own.cut, found.plan.seed, own.test, digest) in known
            if is_known or not all(Path(path).exists() for path in (own.hypotheses, other.hypotheses, own.scores)):
                continue
            stages += with_plug_ins([found.stage], self.wishes.user_dir)
            rows.append({
                "kind": COMPARISON, "recipe": self.recipe.name, "variant": found.plan.variant, "cut": own.cut,
                "seed": found.plan.seed, "budget": found.plan.budget, "baseline": found.base.variant, "test": own.test,
                "digest": digest})
        done = self._executed(stages)
        append_rows(self.results, [{**row, "figures": comparison_figures(Path(figures_path(stage.output)))}
                                   for number, (row, stage) in enumerate(zip(rows, stages, strict=True)) if number in done])
        return len(done) == len(stages)

    def _executed(self, stages: Sequence[Stage]) -> set[int]:
        """The numbers of those that there was time for. Resampling takes seconds a test set: one process a core."""
        done: set[int] = set()
        if not stages or self.stopping.is_due:
            return done
        console.notice(f"{self.recipe.name}: {len(stages)} comparisons with {self.recipe.baseline}")
        with Workers(min(len(stages), self.wishes.workers or available_cores())) as workers:
            for number, _ in workers.results(execute_to_file, stages):
                done.add(number)
                if self.stopping.is_due:
                    break
        return done


def execute_to_file(stage: Stage) -> None:
    """One command, right here; what it prints appears whole or not at all."""
    with whole_file(Path(stage.output)) as part, part.open("w", encoding="utf-8") as file, redirect_stdout(file):
        execute(list(stage.words))


def plan_all(recipe: Recipe, places: Places, wishes: Wishes) -> tuple[tuple[Stage, ...], list[RunPlan]]:
    """Everything that there is to do, checked against the options that there are."""
    data_stages = plan_data(recipe.data, places, wishes.workers)
    plans = [plan_run(recipe, recipe.variants[name], seed, places, budget=wishes.budget, train_flags=wishes.train_flags)
             for name, seed in wishes.runs]
    if not places.are_trusted:
        check_places(recipe.data)
    check_stages(f"corpus {recipe.data.name}", data_stages[1:], places)  # the first one is of our own making
    for variant in dict.fromkeys(plan.variant for plan in plans):
        plan = next(plan for plan in plans if plan.variant == variant)  # seeds make no difference
        check_stages(plan.title, plan.stages, places, wishes.train_flags)
    first, *others = data_stages
    return (first, *with_plug_ins(others, wishes.user_dir)), [
        replace(plan, stages=with_plug_ins(plan.stages, wishes.user_dir)) for plan in plans]


def with_plug_ins(stages: Iterable[Stage], user_dir: Sequence[str]) -> tuple[Stage, ...]:
    """The same commands with the parts that a person named: each runs in a process of its own."""
    words = (f"--{USER_DIR}={','.join(user_dir)}",) if user_dir else ()
    return tuple(replace(stage, words=(*stage.words, *words)) for stage in stages)


def rows_of(plan: RunPlan, outcome: dict[str, Any], recipe: Recipe, wishes: Wishes) -> list[dict[str, Any]]:
    """A row for the whole model and for each of its cuts; of a run that was stopped, for those that are measured."""
    records = read_records(plan.folder)
    training = training_figures(log_path(plan.folder, "train"))
    status = outcome["status"]
    if status == "done" and training.get("valid loss", 0.0) >= recipe.stalled_above:
        status = "stalled"
    common = {"budget": plan.budget, "status": status, "commit": wishes.commit, "command": wishes.command,
              "train": plan.stages[0].line, "hardware": outcome.get("hardware", ""),
              "jobs": wishes.jobs, "versions": provenance.versions(), "time": provenance.origin()["time"],
              "digest": plan.digest}
    rows = []
    for cut in dict.fromkeys(one.cut for one in plan.evaluations) or [""]:
        evaluations = [one for one in plan.evaluations if one.cut == cut]
        figures: dict[str, float] = {}
        for one in evaluations:
            found = score_figures(Path(one.figures)) if status in MEASURED else {}
            figures |= {f"{one.test} {name}": value for name, value in found.items()}
            speed = decoding_speed(Path(one.speed)) if found and one.hypotheses else None
            if speed is not None:
                figures[f"{one.test} sentences/s"] = speed
        if status == "stopped" and not figures:
            continue
        seconds = {name: record["seconds"] for name, record in records.items()
                   if name in ("train", "average") or name in {one.stage for one in evaluations}}
        row = {"kind": RUN, "recipe": plan.recipe, "variant": plan.variant, "cut": cut, "seed": plan.seed, **common,
               "figures": figures | (training if not cut else {}), "seconds": seconds}
        if outcome["message"]:
            row["message"] = outcome["message"]
        rows.append(row)
        if status not in MEASURED:
            break
    return rows


def _read(path: Path) -> dict[str, Any]:
    """A JSON object of ours; nothing where there is none, or not all of it."""
    try:
        content = read_json(path)
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def run_recipes(recipes: Sequence[Recipe], places: Places, wishes_of: Callable[[Recipe], Wishes], stop_after: float) -> None:
    """One after the other; a recipe that fails is told, and the others continue."""
    with StopWish(console.notice) as wish:
        stopping = Stopping(stop_after, wish)
        runners = [Runner(recipe, places, wishes_of(recipe), stopping) for recipe in recipes]
        unsettled = 0
        problems: list[str] = []
        for runner in runners:
            if stopping.is_due:
                unsettled += 1
                continue
            try:
                unsettled += not runner.run()
            except LaminaError as error:
                problems.append(str(error))
                if runner is not runners[-1]:  # what the last one says, the command ends with
                    console.warn(str(error))
    rows = [row for row in latest(read_rows(places.out / FILE_NAME)) if row["kind"] == RUN]
    if rows:
        console.notice(f"{len(rows)} rows in {places.out / FILE_NAME}, tables in {places.out / TABLE_NAME}")
    if wish.signal is not None:
        raise StopSignal(f"stopped by {wish.signal.name}: the same command resumes from there.", wish.signal)
    if problems:
        raise LaminaError(problems[-1])
    if unsettled and stopping.is_due:
        console.notice(f"time is up (--stop-after): {unsettled} of {len(recipes)} recipes are not finished, the same command "
                       "resumes from there")
    elif unsettled:
        raise LaminaError(f"some runs of {unsettled} of {len(recipes)} recipes failed; {places.out / TABLE_NAME} says which, "
                          "and the same command tries them again.")
