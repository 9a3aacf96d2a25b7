"""Data-driven pruning: which layers of a trained model to keep, by what validation data says (Fan et al. 2020, §3.2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lamina.checkpoint.format import PLUG_IN_ADVICE, Checkpoint
from lamina.config.batches import BatchConfig, DataConfig
from lamina.config.prune_options import LayerMetricConfig, LayerSearchConfig
from lamina.config.train_options import OptimizationConfig
from lamina.data.feed import Feed
from lamina.data.verify import verify_splits
from lamina.errors import CheckpointError, ConfigError, DataError
from lamina.fields import build, unique_leaves
from lamina.interop.downloads import local_path
from lamina.parts import Criterion
from lamina.pruning.cut import stack_depths
from lamina.pruning.layer_meter import LayerMeter
from lamina.pruning.measurements import Measurements, file_digest
from lamina.pruning.subsets import RULES, SEARCHED, Scored, Subset, by_rule, descend, ranked, whole_subset
from lamina.registry import register
from lamina.tasks.translation import Translation
from lamina.text.pieces import warn_of_joiner
from lamina.traits import PAIRS

# Where neither limit is given.
DEFAULT_MAX_TOKENS = 4096


def open_meter(checkpoint: Checkpoint, folder: str, config: LayerMetricConfig, path: Path,
               notice: Callable[[str], object]) -> LayerMeter:
    """The checkpoint's model and the data to measure it on."""
    names = {leaf.name for leaf in unique_leaves(DataConfig)}
    stored = {name: value for name, value in checkpoint.config.items() if name in names}
    if checkpoint.kind.has(PAIRS):
        stored |= dict(zip(("source-lang", "target-lang"), checkpoint.languages, strict=True))
    data = build(DataConfig, stored | {"data": folder, "train-subset": config.subset, "valid-subset": config.subset})
    task = checkpoint.kind.open(data, checkpoint.model_config())
    if config.is_of_texts and not isinstance(task, Translation):
        raise ConfigError(f"--metric {config.metric} is for translations, and {path} was trained for {checkpoint.task}. "
                          "Use --metric loss.")
    for side, theirs, ours in zip(checkpoint.sides, checkpoint.vocabularies(), task.vocabularies, strict=True):
        task.check_dictionary(side, theirs, ours, path)
    if config.is_of_texts:
        warn_of_joiner(config.remove_bpe, task.vocabularies[1], lambda text: notice(f"warning: {text}"))
    device = torch.device("cuda" if torch.cuda.is_available() and not config.cpu else "cpu")
    limits = BatchConfig(max_tokens=config.max_tokens or (None if config.max_sentences else DEFAULT_MAX_TOKENS),
                         max_sentences=config.max_sentences)
    verify_splits(task.data_parts(task.folders[:1]), [config.subset], "once", pair=task.language_pair, note=notice)
    feed = Feed(task.corpus(config.subset), seed=1, limits=limits, max_positions=task.max_positions, device=device,
                is_shuffled=False)
    if len(feed.too_long.indices):
        if not config.skip_invalid:
            raise DataError(f"{feed.describe_too_long()}. That would change the figures: raise the limits, or add "
                            "--skip-invalid-size-inputs-valid-test to continue without them.")
        notice(feed.describe_too_long())
    depths = stack_depths(checkpoint)
    model = checkpoint.build_model().to(device)
    # Read once: they are measured on many times.
    batches, criterion = list(feed.batches()), _criterion(checkpoint)
    return LayerMeter(model, whole_subset(depths["encoder"], depths["decoder"]), task, batches, criterion, config)


def _criterion(checkpoint: Checkpoint) -> Criterion:
    """The run's own, without its options: what is compared is the likelihood."""
    # How an imported model was trained is unknown.
    usual = checkpoint.kind.defaults.get("criterion", OptimizationConfig().criterion.name)
    name = checkpoint.config.get("criterion", usual)
    if name not in register.criterion:
        raise CheckpointError(f"the checkpoint was trained with --criterion {name}, which is not registered here. "
                              f"{PLUG_IN_ADVICE}")
    return register.criterion[name]()


def _files_of(checkpoint: Path) -> list[Path]:
    """Of one that may be a folder, or on the Hugging Face Hub."""
    path = local_path(checkpoint)
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def open_measurements(output: Path, checkpoint_path: Path, folder: str, config: LayerMetricConfig, *,
                      counts_tokens: bool = False) -> Measurements:
    """What was measured on these very weights and data, in a file beside the output unless another is named."""
    files = sorted(path for path in Path(folder.split(":")[0]).rglob(f"{config.subset}.*") if path.is_file())
    about: dict[str, Any] = {"checkpoint": file_digest(_files_of(checkpoint_path)), "data": file_digest(files),
                             "split": config.subset, "metric": config.metric}
    if config.is_of_texts:
        about |= {"beam": config.beam, "remove-bpe": config.remove_bpe, **({"tokenized": True} if counts_tokens else {})}
    return Measurements(Path(config.memory) if config.memory else output.with_name(f"{output.stem}.search.json"), about)


class Found(NamedTuple):
    """What a search came to: every choice that was compared at the end, by name, and the name of the best."""

    choices: dict[str, Scored]
    best: str

    @property
    def subset(self) -> Subset:
        return self.choices[self.best].subset


def budget_of(config: LayerSearchConfig, whole: Subset, path: Path) -> tuple[int, int]:
    """How many layers of each stack to keep."""
    depths = []
    for side, number, depth in zip(("encoder", "decoder"), (config.encoder_layers, config.decoder_layers), whole.depths,
                                   strict=True):
        if number is not None and number > depth:
            raise ConfigError(f"--{side}-layers is {number}, but {path} has {depth} {side} layers." if depth else
                              f"--{side}-layers has no effect: {path} has no {side}. Leave it out.")
        depths.append(depth if number is None else number)
    if tuple(depths) == whole.depths:
        raise ConfigError(f"these are all the layers of {path}: there is nothing to prune.")
    return depths[0], depths[1]


def search_layers(whole: Subset, depths: tuple[int, int], quality: Callable[[Subset], float], *, width: int,
                  is_maximized: bool) -> Found:
    """The best of what the search and the simple rules propose, so that it is never worse than evenly spaced layers."""
    found = descend([whole], depths, quality, width=width, is_maximized=is_maximized)[0]
    return best_of({SEARCHED: found.subset}, whole, depths, quality, is_maximized=is_maximized)


def best_of(proposed: dict[str, Subset], whole: Subset, depths: tuple[int, int], quality: Callable[[Subset], float], *,
            is_maximized: bool) -> Found:
    """What was proposed, and the simple rules beside it."""
    subsets = proposed | {rule: by_rule(rule, depths, whole) for rule in RULES}
    choices = {name: Scored(subset, quality(subset)) for name, subset in subsets.items()}
    best = ranked(choices.values(), is_maximized=is_maximized)[0].value
    return Found(choices, next(name for name, scored in choices.items() if scored.value == best))
