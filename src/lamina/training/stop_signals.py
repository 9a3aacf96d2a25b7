"""What a run does when a signal tells it to stop or to save: the same on all ranks, after the same update."""

from __future__ import annotations

import signal
from typing import NoReturn

from lamina.distributed.signals import StopWish
from lamina.errors import AlreadyToldError, StopSignal
from lamina.training.keeper import LAST_NAME
from lamina.training.run import Run
from lamina.training.stopping_rules import ASKED


def heed(run: Run, wish: StopWish, *, is_check_next: bool = False) -> bool:
    """Whether any rank heard a signal to stop; one to save is granted here, and a callback's wish to stop is handed on.

    Ranks hear signals at different moments, and must stop or save after the same update.
    """
    asked = run.reporter.listeners.stop_wish
    stops, saves, asks = run.ranks.sum(int(wish.signal is not None), int(wish.take_save()), int(bool(asked)))
    if asks:
        run.rules.asked = asked or ASKED
    if saves and not stops:
        run.saver.save_now(is_check_next=is_check_next)
    return stops > 0


def stop_for(run: Run, wish: StopWish, *, is_check_skipped: bool = False) -> NoReturn:
    """Leave as a signal wished, with all that was done on disk. What was due now is done when the run is resumed.

    Not even a validation comes first: a machine that is taken away is given half a minute.
    """
    run.watch.flush()
    is_saved = run.config.saving.is_on
    if is_saved:
        run.saver.save_last(is_check_pending=is_check_skipped)
    keeper = run.saver.keeper
    keeper.finish()
    run.ranks.sum(0)  # launchers end all ranks when one is gone: no rank leaves before the state is on disk
    number = wish.signal or signal.SIGTERM
    run.tell("end", reason=f"stopped by {number.name}")
    if not run.ranks.is_first:
        raise AlreadyToldError(128 + number)
    saved = f"{keeper.folder / LAST_NAME} is saved, and the same command resumes from there"
    if not is_saved or run.watch.doubt:
        saved = f"nothing is saved ({'--no-save' if not is_saved else run.watch.doubt})"
    raise StopSignal(f"stopped by {number.name} after update {run.progress.updates}: {saved}.", number)
