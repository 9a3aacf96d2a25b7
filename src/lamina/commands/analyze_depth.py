"""`lamina analyze depth`: what makes a model hard to train deep, as figures on a page."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from lamina import __version__, console
from lamina.analysis.depth import (
    gradient_norms,
    kinds_to_compare,
    output_change,
    output_change_by_depth,
    sums_of,
)
from lamina.analysis.depth_page import Measured, change_section, dependency_section, gradient_section, variance_section
from lamina.analysis.page import PAGE_NAME, Section, figures_of, open_folder, write_page
from lamina.analysis.probes import Sum
from lamina.analysis.samples import first_batch, open_task
from lamina.config.analyze_options import AnalyzeDepthConfig
from lamina.config.model import ModelConfig
from lamina.config.parser import resolve, spelled_out
from lamina.data.batching import AnyBatch
from lamina.errors import ConfigError, DataError
from lamina.fields import flatten
from lamina.interop.any_format import load_any
from lamina.interop.fairseq_file import DictionaryPlaces
from lamina.metrics.figures_file import write_figures
from lamina.nn.stack import stacks_of
from lamina.parts.contracts import TaskKind


class Subject(NamedTuple):
    """The model to look into, and what it runs on."""

    task: TaskKind
    config: ModelConfig
    vocab_sizes: tuple[int, ...]
    model: Any
    batch: AnyBatch
    is_fresh: bool


def run(config: AnalyzeDepthConfig) -> None:
    subject = choose_subject(config)
    sums = sums_of(subject.model, subject.batch)  # a residual that cannot be looked into is refused here, with nothing written
    folder = open_folder(config.out)
    # All of it before the first file: what fails leaves an earlier page as it was.
    sections = [dependency_section(sums), _change(config, subject, sums),
                gradient_section(gradient_norms(subject.model, subject.batch)), variance_section(sums)]
    flat = flatten(config)
    implied = flatten(resolve(AnalyzeDepthConfig, {name: flat[name] for name in ("out", "arch", "task")}).model)
    title = f"Depth in {config.checkpoint or f'a fresh {config.arch}'}"
    written = write_page(folder, title=title, about=_about(config, subject), sections=sections,
                         command=spelled_out("lamina analyze depth", config, implied))
    if config.json:
        write_figures(config.json, figures_of(sections))
    console.notice(f"wrote {len(written)} files to {folder}; open {folder / PAGE_NAME}")


def choose_subject(config: AnalyzeDepthConfig) -> Subject:
    """A checkpoint's model, or a fresh one of the configuration."""
    device = torch.device("cuda" if torch.cuda.is_available() and not config.cpu else "cpu")
    task, model_config, flat = config.kind, config.model, flatten(config)
    model, sizes = None, task.vocab_sizes(config.sample.vocab_size)
    if config.checkpoint is not None:
        if config.model != resolve(AnalyzeDepthConfig, {"out": config.out}).model:
            raise ConfigError("a checkpoint says itself what model it is: leave out the flags of the model.")
        checkpoint = load_any(config.checkpoint, places=DictionaryPlaces.of(config.sample.data), notice=console.notice)
        task, model_config, flat = checkpoint.kind, checkpoint.model_config(), checkpoint.config
        model, sizes = checkpoint.build_model(), tuple(map(len, checkpoint.vocabularies()))
    sample = config.sample
    if sample.data is None:
        batch = task.made_up_batch(sizes, sample.num_sentences, sample.length, config.seed).to(device)
    else:
        data = open_task(task, model_config, sample.data, flat)
        found = tuple(map(len, data.vocabularies))
        if model is not None and sizes != found:
            raise DataError(f"{sample.data} has dictionaries of {' and '.join(map(str, found))} symbols, the checkpoint of "
                            f"{' and '.join(map(str, sizes))}. Give the data folder that it was trained on.")
        sizes, batch = found, first_batch(data, sample.max_tokens, device, config.seed)
    is_fresh = model is None
    if model is None:
        torch.manual_seed(config.seed)
        model = task.build_model(model_config, sizes)
    model = model.to(device).eval()
    if is_fresh:
        model_config.init.fill_(model, batch)
    return Subject(task, model_config, sizes, model, batch, is_fresh)


def _change(config: AnalyzeDepthConfig, subject: Subject, sums: dict[str, list[Sum]]) -> Section:
    total = len(kinds_to_compare(subject.config)) * len(config.sub_layers) * config.repeats
    with console.progress("measuring output changes", total) as advance:
        changes = output_change_by_depth(subject.task, subject.config, subject.vocab_sizes, subject.batch, config.sub_layers,
                                         step=config.step, repeats=config.repeats, seed=config.seed, advance=advance)
    stack, own = subject.task.stacks[0], None
    if not subject.is_fresh:
        change = output_change(subject.model, stacks_of(subject.model)[stack], subject.batch, step=config.step,
                               seed=config.seed)
        own = Measured(len(sums[stack]), change)
    return change_section(config.sub_layers, changes, stack=stack, step=config.step, checkpoint=own)


def _about(config: AnalyzeDepthConfig, subject: Subject) -> dict[str, str]:
    depths = " and ".join(f"{len(stack.layers)} {name} layers" for name, stack in stacks_of(subject.model).items())
    first = getattr(subject.config, subject.task.stacks[0])
    sample, norm = config.sample, "Pre-LN" if first.is_pre_norm else "Post-LN"
    return {"model": f"{depths}, width {first.model_dim}, {norm}, --init-type {flatten(subject.config)['init-type']}, "
                     f"{'freshly initialised' if subject.is_fresh else 'trained'}",
            "runs on": sample.data or f"{sample.num_sentences} made-up sentences of {sample.length} tokens",
            "made by": f"Lamina {__version__}"}
