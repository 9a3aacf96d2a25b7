"""`lamina calibrate`: choose the threshold of a cascade on validation data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import NamedTuple

from lamina import console
from lamina.api.from_flags import load_translator
from lamina.api.translated_split import TranslatedSplit
from lamina.api.translator import Translator
from lamina.config.calibrate_options import CalibrateConfig
from lamina.config.chosen_depth import Depth
from lamina.config.keep import as_text
from lamina.config.search_options import given_options
from lamina.decode.active_depth import layer_counts, stack_sizes
from lamina.decode.cascade import Cascade, cascade_path
from lamina.distributed.ranks import Ranks
from lamina.errors import ConfigError, DataError
from lamina.metrics.bleu import Bleu
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.pruning.calibration import Curve, Pass, Point, curve_of

NUM_SHOWN = 11  # rows of the printed curve; the file has more
NUM_WRITTEN = 101


class Candidate(NamedTuple):
    name: str  # the layers that run, such as 3-2
    depth: Depth
    shallow: Pass
    curve: Curve
    chosen: Point


def run(config: CalibrateConfig) -> None:
    output = Path(config.output) if config.output is not None else cascade_path(config.files.paths)
    if not output.parent.is_dir():
        raise ConfigError(f"there is no folder {output.parent} to write {output.name} to. Name a file with --output.")
    translator = load_translator(config.files, config.data)
    if not translator.has_layerdrop:
        console.warn("this model was trained without LayerDrop: fewer of its layers translate badly.")
    layers = {text: _layers(translator, text, depth) for text, depth in config.parsed_depths.items()}
    split = TranslatedSplit(config.generation, translator)
    if translator.device.type != "cpu":
        _translated(split, ALL_LAYERS)  # the first search of a process pays for what all others find ready
    whole, references = _translated(split, ALL_LAYERS)
    bleu = Bleu(is_tokenized=not config.is_detokenized)
    _tell(f"all layers: BLEU {bleu.corpus(whole.texts, [references]).score:.2f}, {whole.speed:.2f} sentences/s")
    if bleu.corpus(whole.texts, [references]).score == 0.0:
        raise DataError(f"all layers together reach 0 BLEU on {config.data.subset}, and nothing can be lost of that. Train the "
                        "model for longer, or name a split that it can translate with --gen-subset.")
    candidates = []
    for text, depth in config.parsed_depths.items():
        shallow, _ = _translated(split, layers[text])
        curve = curve_of(shallow, whole, references, bleu)
        name = "-".join(map(str, layer_counts(layers[text], translator.models[0]).values()))
        candidates.append(Candidate(name, depth, shallow, curve, curve.chosen(config.max_loss)))
        _show(candidates[-1], whole)
    useful = [own for own in candidates if own.chosen.num_kept]
    if not useful:
        raise DataError(f"every threshold loses more than {config.max_loss:g} BLEU: not even the surest translations can be "
                        "kept. Allow a larger --max-loss, or begin with more layers (--depth).")
    best = min(useful, key=lambda own: own.chosen.seconds)
    if best.chosen.seconds >= whole.seconds:
        console.warn(f"the cascade is no faster than all layers: {best.name} takes {best.shallow.seconds:.1f} s, all layers "
                     f"{whole.seconds:.1f} s. Begin with fewer layers (--depth), or train with more LayerDrop.")
    _cascade(config, translator, best, whole).save(output)
    point = best.chosen
    _tell(f"chosen: {best.name} first, kept from a mean log-probability of {point.threshold:.4f} on: "
          f"{_share(point, whole):.1f} % of the sentences, BLEU {point.bleu:.2f} ({point.bleu - best.curve.whole:+.2f}), "
          f"{whole.seconds / point.seconds:.2f} times the sentences/s of all layers")
    console.notice(f"wrote {output}")


def _layers(translator: Translator, text: str, depth: Depth) -> ActiveLayers:
    active = translator.active_layers(depth)
    if active == ALL_LAYERS:
        raise ConfigError(f"--depth {text} is all of this model's layers, {_counts(translator)}. A cascade begins with fewer.")
    return active


def _counts(translator: Translator) -> str:
    return "-".join(map(str, stack_sizes(translator.models[0]).values()))


def _translated(split: TranslatedSplit, active: ActiveLayers) -> tuple[Pass, list[str]]:
    """The split at a depth, and its references."""
    started = time.perf_counter()
    found = list(split.results(Ranks(), active=active))
    seconds = time.perf_counter() - started
    result = Pass([own.hypothesis for own in found], [own.confidence for own in found], [own.num_tokens for own in found],
                  seconds)
    return result, [own.reference for own in found]


def _show(candidate: Candidate, whole: Pass) -> None:
    _tell(f"{candidate.name} alone: BLEU {candidate.curve.points[-1].bleu:.2f}, {candidate.shallow.speed:.2f} sentences/s")
    _tell("   kept   threshold    BLEU  sentences/s")
    rows = {point.num_kept: point for point in (*candidate.curve.shown(NUM_SHOWN), candidate.chosen)}
    for point in sorted(rows.values(), key=lambda own: own.num_kept):
        mark = "  <- chosen" if point == candidate.chosen and point.num_kept else ""
        threshold = f"{point.threshold:.4f}" if point.num_kept else "-"
        _tell(f"{_share(point, whole):5.1f} %  {threshold:>10}  {point.bleu:6.2f}  "
              f"{len(whole.texts) / max(point.seconds, 1e-9):11.2f}{mark}")


def _share(point: Point, whole: Pass) -> float:
    return 100.0 * point.num_kept / max(len(whole.texts), 1)


def _cascade(config: CalibrateConfig, translator: Translator, best: Candidate, whole: Pass) -> Cascade:
    sizes = stack_sizes(translator.models[0])
    number, point = len(whole.texts), best.chosen
    figures = {
        "split": config.data.subset, "sentences": number, "max_loss": config.max_loss, "device": str(translator.device),
        "whole": {"bleu": best.curve.whole, "sentences_per_second": whole.speed},
        "shallow": {"bleu": best.curve.points[-1].bleu, "sentences_per_second": best.shallow.speed},
        "cascade": {"bleu": point.bleu, "sentences_per_second": number / point.seconds, "kept": point.num_kept / number},
        "curve": [{"kept": own.num_kept / number, "threshold": own.threshold, "bleu": own.bleu,
                   "sentences_per_second": number / own.seconds}
                  for own in best.curve.shown(NUM_WRITTEN) if own.num_kept]}
    return Cascade(model=translator.digest, depth={side: as_text(best.depth.layers(side, size)) for side, size in sizes.items()
                                                   if size},
                   threshold=point.threshold, search=given_options(config.search), figures=figures)


def _tell(line: str) -> None:
    print(line, flush=True)
