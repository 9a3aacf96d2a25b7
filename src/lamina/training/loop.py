"""The training loop. It reads as the algorithm; what it moves is a Run, which training/run.py puts together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lamina.data.feed import Share
from lamina.distributed.signals import StopWish
from lamina.distributed.waiting import DATA, Waits
from lamina.nn.stack import ALL_LAYERS
from lamina.parts.contracts import Curve
from lamina.training.divergence import DivergenceWatch
from lamina.training.layer_drop import LayerDrop
from lamina.training.progress import Progress
from lamina.training.run import Run
from lamina.training.stop_signals import heed, stop_for
from lamina.training.update import Updater


def run_updates(updater: Updater, schedule: Curve, shares: Iterable[Share], progress: Progress, watch: DivergenceWatch,
                seed: int, layer_drop: LayerDrop | None = None) -> Iterator[None]:
    """One update after another; yields after each, so that the caller decides about validating and stopping."""
    for share in _waited_for(shares, updater.ranks.waits):
        lr = schedule(progress.updates - progress.schedule_start, progress.epoch)
        result = updater.update(share.batches, lr, update_seed(seed, progress.updates),
                                [ALL_LAYERS] if layer_drop is None else layer_drop.draws(progress.updates, share.total),
                                share.total)
        progress.updates += 1
        progress.batches_done += share.total
        watch.add(result, lr)
        yield


def _waited_for(shares: Iterable[Share], waits: Waits) -> Iterator[Share]:
    """The same, with the time noted that they are late."""
    coming = iter(shares)
    while True:
        with waits.on_host(DATA):
            share = next(coming, None)
        if share is None:
            return
        yield share


def update_seed(seed: int, updates: int) -> int:
    return (seed << 32) + updates


def train(run: Run) -> None:
    """Until a limit is reached, or a signal comes: an epoch of updates, then validation and a checkpoint."""
    run.tell("start")
    with StopWish(run.reporter.note) as wish, run.saver.keeper:
        _train_until_done(run, wish)
    run.watch.check_end()
    run.reporter.note(f"training stopped: {run.rules.why_stop()}")
    run.tell("end", reason=run.rules.why_stop())
    run.reporter.repeat_warnings()


def _train_until_done(run: Run, wish: StopWish) -> None:
    progress, rules, checks = run.progress, run.rules, run.checks
    if progress.is_check_pending:
        checks.check(progress.epoch, is_epoch_end=False)
    while not rules.why_stop():
        if heed(run, wish):
            stop_for(run, wish)
        run.files.check()
        feed = run.feeds.train(progress.epoch)
        num_batches = len(feed.plan(progress.epoch))
        run.reporter.begin_epoch(num_batches)
        shares = feed.shares(progress.epoch, progress.batches_done, run.feeds.update_freq(progress.epoch), run.ranks.rank,
                             run.ranks.size, has_fillers=run.updater.weights.needs_fillers)
        run.profiler.look(progress.updates)
        for _ in run_updates(run.updater, run.schedule, shares, progress, run.watch, run.config.seed, run.layer_drop):
            run.profiler.look(progress.updates)
            run.files.look()
            run.saver.keeper.look()
            is_over = progress.batches_done >= num_batches or rules.why_stop()
            is_check_next = not is_over and checks.is_due()
            if not rules.why_stop() and heed(run, wish, is_check_next=is_check_next):
                stop_for(run, wish, is_check_skipped=is_check_next)
            if is_check_next:
                checks.check(progress.epoch, is_epoch_end=False)
            if is_over or rules.why_stop():
                break
        run.watch.flush()
        checks.close_epoch(is_cut_short=progress.batches_done < num_batches)
