"""Going on from a checkpoint: weights, optimizer, loss scale and progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.serialization import config as serialization

from lamina.checkpoint.dictionary_change import with_dictionaries
from lamina.checkpoint.finite import ruined_part
from lamina.checkpoint.format import Checkpoint, load_weights_
from lamina.checkpoint.merging import merged_if_it_can
from lamina.checkpoint.runs import BEFORE_RUNS, is_run, named, new_run
from lamina.checkpoint.shards import is_sharded
from lamina.config.differences import flags_for
from lamina.config.keep import SIDES, KeepConfig
from lamina.config.train_options import SavingConfig, TrainConfig
from lamina.distributed.ranks import Ranks
from lamina.errors import CheckpointError, DamageError
from lamina.fields import build, check, flatten
from lamina.interop.any_format import load_any
from lamina.interop.exported_folder import is_exported
from lamina.interop.fairseq_file import DictionaryPlaces
from lamina.pruning.cut import prune_config, prune_on_loading, structure_of
from lamina.tasks.base import Task
from lamina.training.feeds import Feeds
from lamina.training.keeper import LAST_NAME, earlier_checkpoints
from lamina.training.measure import measure_of
from lamina.training.progress import Progress
from lamina.training.update import Updater

DEFAULT_RESTORE_FILE = SavingConfig().restore_file
assert DEFAULT_RESTORE_FILE == LAST_NAME
MAX_NAMED = 4


class StartingPoint(NamedTuple):
    """Where a run's weights come from."""

    path: Path
    checkpoint: Checkpoint
    is_resumed: bool  # or else only the weights are taken


def pruned_config(config: TrainConfig, checkpoint: Checkpoint | None, note: Callable[[str], None]) -> TrainConfig:
    """The run's configuration, for the layers that the model has.

    A checkpoint that was pruned, just now or before, decides: the flags may still describe the model before that.
    """
    if checkpoint is None:
        model, records = prune_config(config.model, config.keep)
        if records:
            note("there is no checkpoint to prune: a model of the layers to keep alone begins from scratch")
        changed = flatten(model) | records
    else:
        changed = structure_of(checkpoint)
        told = flatten(config.model)
        for name, asked in zip(("encoder-layers", "decoder-layers"), (config.keep.encoder, config.keep.decoder), strict=True):
            if asked is None and changed.get(name, told[name]) != told[name]:
                note(f"--{name} is {told[name]}, but the checkpoint was pruned to {changed[f'{name}-to-keep']}: the model has "
                     f"{changed[name]}")
    if config.keep.is_empty and not any(f"{side}-layers-to-keep" in changed for side in SIDES):
        return config
    # What was asked for gives way to what was done, which is what the next checkpoint has to tell.
    return build(TrainConfig, flatten(config) | flatten(KeepConfig()) | changed)


def starting_point(config: TrainConfig, device: torch.device, note: Callable[[str], None],
                   warn: Callable[[str], None]) -> StartingPoint | None:
    """The checkpoint whose weights the model begins with, cut to the layers to keep, if there is one."""
    saving = config.saving
    if config.model.init.why_stop():
        # A profile is of the weights that training begins with, whatever has been trained already.
        return None
    check_start(saving)
    path = find_restore_file(saving)
    is_resumed = path is not None
    if not is_resumed and saving.restore_file != DEFAULT_RESTORE_FILE:
        warn(describe_fresh_start(saving))
    if is_resumed and saving.finetune_from_model:
        note(f"{path} is there: this run is resumed, and {saving.finetune_from_model} is not read again")
    if path is None and saving.finetune_from_model:
        path = Path(saving.finetune_from_model)
    if path is None:
        return None
    data = config.data
    places = DictionaryPlaces.of(data.data, source_lang=data.source_lang, target_lang=data.target_lang)
    path, whole = load_whole(path, lambda path: load_any(path, device, places=places, notice=note), note,
                             may_fall_back=is_resumed and saving.restore_file == DEFAULT_RESTORE_FILE)
    checkpoint = prune_on_loading(whole, config.keep, path, say=note, warn=note)
    if checkpoint is not whole and path.parent.resolve() == Path(saving.save_dir).resolve():
        note(f"checkpoints of the pruned model take the place of the whole one's in {saving.save_dir}: to keep those, choose "
             "another --save-dir")
    # A model of another task lends its weights; its updates and scores mean nothing here.
    is_resumed = is_resumed and checkpoint.task == config.task
    return StartingPoint(path, checkpoint, is_resumed)


def check_start(saving: SavingConfig) -> None:
    """A run has one beginning. Here and not in the configuration, which an old checkpoint may hold with both."""
    check(saving.finetune_from_model is None or saving.restore_file == DEFAULT_RESTORE_FILE,
          f"--finetune-from-model {saving.finetune_from_model} begins a new run with a model's weights, and --restore-file "
          f"{saving.restore_file} continues with an old one. Leave one of them out; the same command without "
          "--restore-file resumes automatically.")


def describe_fresh_start(saving: SavingConfig) -> str:
    """What a --restore-file that does not exist means: what fairseq's scripts ask for, or a slip that costs days."""
    text = (f"--restore-file {saving.restore_file} does not exist, neither in {saving.save_dir} nor as a path: training starts "
            "from scratch, with new weights.")
    last = Path(saving.save_dir, LAST_NAME)
    if last.exists():
        text += f" {last} of an earlier run is not read, and will be replaced; without --restore-file, that run is resumed."
    return text


def find_restore_file(saving: SavingConfig) -> Path | None:
    """In the save folder, or where the path says; None means a fresh start. The default is no path: another run's file of that
    name may lie in the current folder.
    """
    places = [Path(saving.save_dir, saving.restore_file)]
    if saving.restore_file != DEFAULT_RESTORE_FILE:
        places.append(Path(saving.restore_file))
    return next((path for path in places if path.is_file() or is_exported(path) or is_sharded(path)), None)


def load_whole(path: Path, read: Callable[[Path], Checkpoint], note: Callable[[str], None], *,
               may_fall_back: bool) -> tuple[Path, Checkpoint]:
    """The checkpoint, or if that is damaged or ruined the latest one beside it that is whole, with a warning."""
    def load(path: Path) -> Checkpoint:
        checkpoint = read(path)
        if (name := ruined_part(checkpoint)) is not None:
            raise DamageError(f"{path} is of no use: {name} holds values that are not finite. Take an earlier one.")
        return checkpoint

    try:
        return path, load(path)
    except DamageError as error:
        if not may_fall_back:
            raise
        damage = error
    for other in earlier_checkpoints(path):
        try:
            checkpoint = load(other.path)
        except CheckpointError:
            continue
        if "progress" in checkpoint.training:
            whose = {True: "", False: f", which is of another run ({named(run_of(checkpoint))}): none of this run is whole",
                     None: "" if other.mark is None else
                     f", the latest of the run that saved last ({named(run_of(checkpoint))}): the folder holds several runs, "
                     "and of which one the damaged file was cannot be read"}[other.is_same_run]
            note(f"warning: {damage} Going on from {other.path} instead{whose}")
            return other.path, checkpoint
    raise damage


def run_of(checkpoint: Checkpoint) -> str:
    run = checkpoint.training.get("run", BEFORE_RUNS)
    return run if is_run(run) else BEFORE_RUNS


def run_to_be(start: StartingPoint | None, saving: SavingConfig) -> str:
    """The id of the run that is continued; a new one where updates or epochs count from the beginning, or two would fork."""
    is_continued = (start is not None and start.is_resumed and saving.restore_file == DEFAULT_RESTORE_FILE
                    and "optimizer" in start.checkpoint.training
                    and not (saving.reset_optimizer or saving.reset_dataloader))
    return run_of(start.checkpoint) if start is not None and is_continued else new_run()


def restore_weights_(model: nn.Module, checkpoint: Checkpoint, task: Task, path: Path, note: Callable[[str], None], *,
                     is_resumed: bool = True) -> dict[str, Tensor]:
    """Weights that fit may still be of a model that computes something else with them: `note` hears of that.

    A run that begins with the weights of another may have another dictionary. Gives what the model was given, by name; of a
    model on the meta device that is all.
    """
    if not is_resumed:
        task.check_origin(checkpoint, path)
        checkpoint = merged_if_it_can(checkpoint)  # a run of its own has an adapter of its own, or none
        checkpoint = with_dictionaries(checkpoint, model, task.vocabularies, task.subwords, path, note)
    weights = task.starting_weights(model, checkpoint, path)
    stored, own = checkpoint.model_config(), task.model_config
    if stored.adapter.is_plain and not own.adapter.is_plain:
        # One that begins beside a model that has none yet.
        weights = weights | {name: parameter for name, parameter in model.named_parameters() if own.adapter.owns(name)}
        stored = replace(stored, adapter=own.adapter)
    folded = checkpoint.training.get("folded")
    was = f" was folded (--init-type {folded} before) and" if folded else ""
    needed = flags_for(stored, own, is_free_included=True)
    load_weights_(model, weights, f"The model of {path}{was} has other flags than this run: {needed}." if needed else "")
    if checkpoint.task != task.name or not (differing := flags_for(stored, own)):
        return weights
    if folded and not own.init.is_plain:
        raise CheckpointError(f"{path} was folded: its residuals are plain, and {own.init.spelled} would "
                              f"scale them once more. For the same model, {differing}.")
    note(f"warning: the weights of {path} fit, but with the flags of this run the model computes something else with them. For "
         f"the same model, {differing}")
    return weights


def restore_training(start: StartingPoint, updater: Updater, config: TrainConfig, note: Callable[[str], None]) -> Progress:
    """Put the optimizer back where it was; the progress to continue with, less what the --reset flags forget."""
    saving, training = config.saving, start.checkpoint.training
    progress = Progress.from_state(training.get("progress", {}))
    if not progress.best_of:  # files of a time before did not say it
        progress.best_of = measure_of(start.checkpoint.config)
    if "optimizer" in training and not saving.reset_optimizer:
        kind = flatten(config.optimization)["optimizer"]
        if "optimizer_kind" not in training or not {"value", "good_updates"} <= training.get("scale", {}).keys():
            raise CheckpointError(f"{start.path} lacks the optimizer's kind or the loss scale that belong to its state. Add "
                                  "--reset-optimizer to start it from scratch.")
        if training["optimizer_kind"] != kind:
            raise CheckpointError(f"the checkpoint was trained with --optimizer {training['optimizer_kind']}, not {kind}. "
                                  "Use that one, or add --reset-optimizer.")
        load_optimizer_(updater, training["optimizer"], note)
        updater.scale.load_state_(training["scale"])
    else:
        # As in fairseq: without the optimizer's state, updates count from 0 again.
        progress.updates = 0
        progress.begin_schedule()
        if not saving.reset_optimizer:
            problem = training.get("optimizer_problem")
            note(f"the optimizer starts from scratch, since the checkpoint's state does not fit: {problem}" if problem else
                 "the checkpoint holds no optimizer state: it starts from scratch")
    if saving.reset_lr_scheduler:
        progress.begin_schedule()
    if saving.reset_dataloader:
        progress.begin_epoch(1)
    if saving.reset_meters:
        progress.forget_scores()
    elif saving.reset_optimizer:
        # As in fairseq: what begins a run of its own, in a folder of its own, has a best checkpoint of its own.
        progress.forget_best()
    note(f"loaded {start.path} (epoch {progress.epoch} @ {progress.updates} updates)")
    return progress


def optimizer_state(updater: Updater) -> dict[str, Any]:
    """By parameter, so that a file does not depend on how weights lie in memory."""
    pieces = updater.optimizer.pieces()
    return {name: updater.weights.whole_by_name(pieces[name]) if name in pieces else value
            for name, value in updater.optimizer.state().items()}


def load_optimizer_(updater: Updater, stored: dict[str, Any], note: Callable[[str], None]) -> None:
    """What the stored state does not know, since pruning made it new or it was frozen, starts from scratch."""
    state, pieces = updater.optimizer.state(), updater.optimizer.pieces()
    if stored.keys() != state.keys():
        raise CheckpointError(f"the checkpoint's optimizer state has {', '.join(sorted(stored))}; expected "
                              f"{', '.join(sorted(state))}. Add --reset-optimizer to start it from scratch.")
    names, shapes = updater.weights.names, updater.weights.shapes
    new: set[str] = set()
    for name, value in state.items():
        own = stored[name]
        if isinstance(own, dict) != (name in pieces) or (isinstance(own, Tensor) and own.shape != value.shape):
            raise CheckpointError(f"the checkpoint's optimizer state {name} does not hold what it should. Add "
                                  "--reset-optimizer to start it from scratch.")
        for number in pieces.get(name, ()):
            if names[number] not in own:
                new.add(names[number])
            elif own[names[number]].shape != shapes[number]:
                raise CheckpointError(f"the checkpoint's optimizer state does not fit {names[number]}. Add --reset-optimizer "
                                      "to start it from scratch.")
    if new:
        some = ", ".join(sorted(new)[:MAX_NAMED]) + (f" and {len(new) - MAX_NAMED} more" if len(new) > MAX_NAMED else "")
        them = "it" if len(new) == 1 else "them"
        note(f"the optimizer starts from scratch for {some}: the checkpoint's state does not know {them}")
    for name, value in state.items():
        if name in pieces:
            value.zero_()
            updater.weights.fill_(pieces[name], stored[name])
        else:
            value.copy_(stored[name])


def check_same_start(progress: Progress, ranks: Ranks) -> None:
    """Ranks that went on from different checkpoints would train different models."""
    starts = ranks.gather([[progress.updates, progress.epoch, progress.batches_done]])
    if starts.count(starts[0]) < len(starts):
        other = next(rank for rank, start in enumerate(starts) if start != starts[0])
        raise CheckpointError(f"rank 0 continues from update {starts[0][0]}, but rank {other} from update "
                              f"{starts[other][0]}: they found different files. --save-dir must be one folder that all "
                              "machines see.")


def find_place_(progress: Progress, feeds: Feeds, note: Callable[[str], None]) -> None:
    """Inside an epoch, a number of batches says nothing where the batches are others than those that were counted."""
    place = progress.place
    if not progress.batches_done or not place.plan:
        return
    epoch, feed = progress.epoch, feeds.train(progress.epoch)
    if feed.is_planned_as(epoch, place):
        return
    done = feed.find(epoch, place)
    if done is None:
        note(f"the training data is not what epoch {epoch} of the checkpoint had: the epoch begins again")
        progress.begin_epoch(epoch)
        return
    num_fitting = len(feed.corpus) - len(feed.too_long.indices)
    note(f"the batches are not those that epoch {epoch} of the checkpoint had (as with another --max-tokens or --seed): it "
         f"continues after as many {feed.corpus.unit}, {place.sentences} of {num_fitting}, at batch {done} of "
         f"{len(feed.plan(epoch))} instead of {progress.batches_done}; some may come twice in this epoch, and others not at "
         "all")
    progress.batches_done = done


@contextmanager
def mapped_files() -> Iterator[None]:
    """Inside, tensors of files that are read stay there until somebody looks at them."""
    before = serialization.load.mmap
    serialization.load.mmap = True
    try:
        yield
    finally:
        serialization.load.mmap = before

