"""`lamina prune`: a smaller checkpoint, of layers that are named or that data chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lamina import console
from lamina.config.prune_options import SEQUENCES, PruneConfig
from lamina.errors import ConfigError

if TYPE_CHECKING:
    from lamina.checkpoint.format import Checkpoint
    from lamina.pruning.cut import Keep
    from lamina.pruning.layer_meter import LayerMeter
    from lamina.pruning.layer_search import Found
    from lamina.pruning.subsets import Subset


def run(config: PruneConfig) -> None:
    # Here, not above: options that exclude each other are refused without loading torch.
    from lamina.checkpoint.output_file import check_output
    from lamina.interop.any_format import load_any
    from lamina.interop.fairseq_file import DictionaryPlaces
    from lamina.pruning.cut import Keep, check_prunable, chosen_layers

    path, output = Path(config.checkpoint), Path(config.output)
    check_output(output, [path])
    checkpoint = load_any(path, places=DictionaryPlaces.of(config.data), notice=console.notice)
    check_prunable(checkpoint)
    if not config.keep.is_empty:
        keep = chosen_layers(checkpoint, config.keep, path)
        if keep == Keep():
            raise ConfigError(f"these are all the layers of {path}: there is nothing to prune.")
        _finish(config, checkpoint, keep, path, output)
        return
    meter, quality = _open(config, checkpoint, path, output)
    measured: dict[str, Any] = {}  # for --json
    if config.search.is_on:
        find = _found if config.search.importance is None else _guessed
        _finish(config, checkpoint, find(config, meter, quality, path, measured), path, output)
    if config.search.curve is not None:
        _draw(config, meter, quality, path, output, measured)
    if config.json is not None:
        from lamina.metrics.figures_file import write_figures

        figures = {config.measure.metric: measured["kept"]["value"]} if "kept" in measured else {}
        write_figures(config.json, figures, split=config.measure.subset, **measured)


def _open(config: PruneConfig, checkpoint: Checkpoint, path: Path,
          output: Path) -> tuple[LayerMeter, Callable[[Subset], float]]:
    """What measures, and the same with a memory on disk."""
    from lamina.pruning.layer_search import open_measurements, open_meter

    assert config.data is not None, "the configuration asks for it"
    meter = open_meter(checkpoint, config.data, config.measure, path, console.notice)
    measurements = open_measurements(output, path, config.data, config.measure, counts_tokens=meter.counts_tokens)
    if measurements.num_known:
        console.notice(f"{measurements.num_known} choices of layers were measured before ({measurements.path})")
    return meter, lambda subset: measurements.get(str(subset), lambda: meter.quality(subset))


def _found(config: PruneConfig, meter: LayerMeter, quality: Callable[[Subset], float], path: Path,
           measured: dict[str, Any]) -> Keep:
    from lamina.pruning.layer_search import budget_of, search_layers
    from lamina.pruning.subsets import RULES, most_measurements

    depths, width = budget_of(config.search, meter.whole, path), config.search.beam_width
    total = most_measurements(meter.whole.depths, depths, width) + len(RULES)
    with console.progress("searching layers", total) as advance:
        found = search_layers(meter.whole, depths, _counting(quality, advance), width=width, is_maximized=meter.is_maximized)
    return _compared(config, meter, quality, found, measured)


def _guessed(config: PruneConfig, meter: LayerMeter, quality: Callable[[Subset], float], path: Path,
             measured: dict[str, Any]) -> Keep:
    """By what each layer seems to be worth, in one pass; the simple rules are in the running here too."""
    from lamina.pruning.importance import rank_layers
    from lamina.pruning.layer_search import best_of, budget_of

    kind, depths = config.search.importance, budget_of(config.search, meter.whole, path)
    assert kind is not None, "asked for"
    with console.progress("ranking layers", len(meter.batches)) as advance:
        found = rank_layers(kind, meter, depths, advance)
    measured["importance"] = found.worth
    for side, worth in found.worth.items():
        print(f"| {kind} of {'blocks that begin at ' if kind == 'angular' else ''}{side} layers: "
              f"{' '.join(f'{number:.4f}' for number in worth)}")
    best = best_of({f"by {kind}": found.subset}, meter.whole, depths, quality, is_maximized=meter.is_maximized)
    return _compared(config, meter, quality, best, measured)


def _compared(config: PruneConfig, meter: LayerMeter, quality: Callable[[Subset], float], found: Found,
              measured: dict[str, Any]) -> Keep:
    """Shows what was compared; the best of it stays."""
    tokens = ", tokens as they stand (tok:none)" if config.measure.cuts_words and meter.counts_tokens else ""
    unit = f"{config.measure.figure.label}{tokens}" if config.measure.is_of_texts else "loss, bits per token"
    print(f"| {unit}, on {config.measure.subset}:")
    rows = [("all layers", meter.whole, quality(meter.whole)), *((name, *scored) for name, scored in found.choices.items())]
    _show(rows, kept=found.best)
    measured["choices"] = [{"choice": name, "layers": str(subset), "value": value} for name, subset, value in rows]
    measured["kept"] = next(row for row in measured["choices"] if row["choice"] == found.best)
    return found.subset.keep(meter.whole)


def _draw(config: PruneConfig, meter: LayerMeter, quality: Callable[[Subset], float], path: Path, output: Path,
          measured: dict[str, Any]) -> None:
    from lamina.pruning.depth_curve import curve_stacks, draw_curve, measure_curve, num_measurements

    stacks, width = curve_stacks(meter.whole, config.search.curve or "both", path), config.search.beam_width
    with console.progress("measuring depths", num_measurements(meter.whole, stacks, width)) as advance:
        points = measure_curve(meter.whole, stacks, _counting(quality, advance), meter.tokens_per_second, width=width,
                               is_maximized=meter.is_maximized)
    unit = config.measure.figure.label if config.measure.is_of_texts else "loss, bits per token"
    print(f"| {unit} and target tokens a second at every depth, on {config.measure.subset}:")
    _show([(f"{point.depth} {point.choice}", point.subset, point.value, f"{point.tokens_per_second:,.0f} tokens/s")
           for point in points])
    measured["curve"] = [{"depth": str(point.depth), "choice": point.choice, "layers": str(point.subset), "value": point.value,
                          "tokens_per_second": point.tokens_per_second} for point in points]
    for file in draw_curve(output.with_name(f"{output.stem}.curve.png"), points, stacks=stacks, metric=config.measure.metric):
        print(f"| wrote {file}")


def _counting(quality: Callable[[Subset], float], advance: console.Advance) -> Callable[[Subset], float]:
    def counted(subset: Subset) -> float:
        value = quality(subset)
        advance(1)
        return value

    return counted


def _show(rows: Sequence[tuple[Any, ...]], kept: str = "") -> None:
    """Name, layers, figure, and what else there is to say, in columns."""
    widths = [max(len(str(row[column])) for row in rows) for column in (0, 1)]
    for name, subset, value, *rest in rows:
        last = [*rest, "<- kept"] if name == kept else rest
        print("  ".join([f"| {name:<{widths[0]}}", f"{subset!s:<{widths[1]}}", f"{value:9.3f}", *last]))


def _finish(config: PruneConfig, checkpoint: Checkpoint, keep: Keep, path: Path, output: Path) -> None:
    """Cut, heal if asked to, and write."""
    from lamina.checkpoint.format import save_checkpoint
    from lamina.checkpoint.marks import marks_of
    from lamina.pruning.cut import PRUNING_LINE, doubts, prune_checkpoint

    # What resuming needs is left out: the file is one to use, or to begin another run with.
    small = prune_checkpoint(checkpoint, keep)
    small = replace(small, training={**marks_of(small), "pruned": path.name})
    heal = None if not config.heal.updates else _healing(config, checkpoint, small, output)
    for doubt in doubts(checkpoint, keep, path):
        console.warn(doubt)
    print(f"| {PRUNING_LINE}")
    whole = checkpoint.model_config()
    for side, layers in zip(keep._fields, keep, strict=True):
        if layers is not None:
            print(f"| {side} layers {','.join(map(str, layers))} of {getattr(whole, side).num_layers}")
    print(f"| num. model params: {sum(weight.numel() for weight in small.weights.values())}")
    save_checkpoint(output, small if heal is None else heal())
    print(f"| wrote {output}")


def _healing(config: PruneConfig, checkpoint: Checkpoint, small: Checkpoint, output: Path) -> Callable[[], Checkpoint]:
    """What heals the cut model; what cannot be is refused now, with nothing written."""
    from lamina.checkpoint.format import load_checkpoint, save_checkpoint
    from lamina.checkpoint.marks import marks_of
    from lamina.pruning.heal import CUT_NAME, TEXT_NAME, check_folder, heal_config, heal_folder
    from lamina.pruning.teacher_text import TeacherText
    from lamina.training.start_training import start_training

    folder = heal_folder(output)
    check_folder(folder, small, config.heal.kind)
    training = heal_config(config, checkpoint, small, folder)
    text = TeacherText(checkpoint, config.checkpoint, Path(config.data or "")) if config.heal.kind == SEQUENCES else None

    def heal() -> Checkpoint:
        folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(folder / CUT_NAME, small)
        if text is not None and not (folder / TEXT_NAME).exists():
            num_kept = text.write(folder / TEXT_NAME, on_cpu=config.measure.cpu, progress=console.progress)
            console.notice(f"wrote {folder / TEXT_NAME}, whose training targets are the whole model's translations"
                           + (f", but for {num_kept} that it does not translate" if num_kept else ""))
        start_training(training)
        # References say little of a model that learns other targets: its loss on them rises while its translations get better.
        healed = load_checkpoint(folder / ("checkpoint_best.pt" if text is None else "checkpoint_last.pt"))
        return replace(healed, training={**marks_of(healed), "pruned": Path(config.checkpoint).name,
                                         "healed": config.heal.updates})

    return heal
