"""From a recipe to the commands of a run, each of which one could type."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lamina.command_line import COMMANDS, find_command, load
from lamina.config.metric_options import metrics_that
from lamina.config.parser import parse, resolve
from lamina.config.yaml_file import flag_words
from lamina.errors import ConfigError
from lamina.parts.contracts import SOURCES
from lamina.plug_ins import USER_DIR, paths_in
from lamina.recipes.confine import check_inside
from lamina.recipes.dataset import Dataset, TestSet
from lamina.recipes.recipe_file import ON_VALID, Cut, Recipe, Variant, metric_names, scaled

WHOLE_NAME = "whole"  # of the model with all its layers, in file names
AVERAGE_NAME = "model.pt"
DOWNLOADS = "{data}"  # in a flag of `lamina preprocess` or `lamina train`: the folder of --data


@dataclass(frozen=True)
class Stage:
    """One command; it is done when it has ended well and what it makes is there."""

    name: str
    words: tuple[str, ...]  # after `lamina`
    output: str = ""  # file that its standard output goes to; its log otherwise
    makes: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        return shlex.join(("lamina", *self.words)) + (f" > {shlex.quote(self.output)}" if self.output else "")


class Evaluation(NamedTuple):
    """What is measured of a cut on a test set, and where it is written."""

    cut: str
    test: str
    stage: str  # that decodes, or evaluates
    hypotheses: str  # file; empty for language models
    scores: str  # file

    @property
    def figures(self) -> str:
        """The same for programs."""
        return figures_path(self.scores)

    @property
    def speed(self) -> str:
        """What decoding took, for programs."""
        return figures_path(self.hypotheses)


def figures_path(output: str) -> str:
    """Of the file that a command's figures go to, beside what it prints."""
    return f"{output}.json"


@dataclass(frozen=True)
class Places:
    """Small files that are the result, large ones that can be made again, and what was downloaded."""

    out: Path
    work: Path
    downloads: Path
    are_trusted: bool = False  # whether a recipe may name others

    def text(self, data: Dataset) -> Path:
        return self.work / "data" / data.name / "text"

    def binary(self, data: Dataset) -> Path:
        return self.work / "data" / data.name / "bin"


@dataclass(frozen=True)
class RunPlan:
    """All that is done for one variant and seed."""

    recipe: str
    variant: str
    seed: int
    budget: float
    folder: Path
    checkpoints: Path
    stages: tuple[Stage, ...]
    evaluations: tuple[Evaluation, ...]
    keeps: tuple[str, ...]  # checkpoints that stay when the run is done
    digest: str  # of the settings, wherever the files lie

    @property
    def title(self) -> str:
        return f"{self.recipe} {self.variant} seed {self.seed}" + ("" if self.budget == 1 else f" budget {self.budget:g}x")


def _words(flags: Mapping[str, Any], places: Places) -> list[str]:
    """As one types them; DOWNLOADS stands for a folder that the recipe cannot know."""
    return [word.replace(DOWNLOADS, str(places.downloads)) for word in flag_words(flags)]


def plan_data(data: Dataset, places: Places, workers: int | None = None) -> tuple[Stage, ...]:
    text, binary = places.text(data), places.binary(data)
    more = [] if workers is None else [f"--workers={workers}"]
    prepare = ["recipe", "prepare", data.call, "--data", str(places.downloads), "--out", str(text), *more,
               *(["--trust-paths"] if places.are_trusted else [])]
    if len(data.languages) == 2:
        sides = ["-s", data.languages[0], "-t", data.languages[1], "--trainpref", f"{text}/train",
                 "--validpref", f"{text}/valid"]
    else:
        ending = "" if data.languages else f".{data.endings[0]}"
        tests = ",".join(f"{text}/{test.name}{ending}" for test in data.tests)
        sides = ["--only-source", *(["-s", data.languages[0]] if data.languages else []),
                 "--trainpref", f"{text}/train{ending}", "--validpref", f"{text}/valid{ending}",
                 *(["--testpref", tests] if tests else [])]
    preprocess = ["preprocess", *sides, "--destdir", str(binary), *_words(data.preprocess, places), *more]
    return (Stage("prepare", tuple(prepare), makes=(str(text / "corpus.json"),)),
            Stage("preprocess", tuple(preprocess), makes=(str(binary / "manifest.json"),)))


def run_name(variant: str, seed: int, budget: float) -> str:
    """Of a run's folders."""
    return f"{variant}.seed{seed}" + ("" if budget == 1 else f".{budget:g}x")


def plan_run(recipe: Recipe, variant: Variant, seed: int, places: Places, *, budget: float = 1.0,
             train_flags: Sequence[str] = ()) -> RunPlan:
    name = run_name(variant.name, seed, budget)
    folder = places.out / "runs" / recipe.name / name
    checkpoints = places.work / "checkpoints" / recipe.name / name
    train = scaled(variant.train, budget)
    model = checkpoints / (AVERAGE_NAME if recipe.average else recipe.model)
    words = ("train", str(places.binary(recipe.data)), *_words(train, places), *train_flags, f"--seed={seed}",
             "--log-format=json", f"--save-dir={checkpoints}")
    stages = [Stage("train", words, makes=(str(checkpoints / "checkpoint_last.pt"),))]
    if recipe.average:
        stages.append(Stage("average", ("average", f"--inputs={checkpoints}", *flag_words(recipe.average), f"--output={model}"),
                            makes=(str(model),)))
    evaluations: list[Evaluation] = []
    keeps = [model.name]
    for cut in variant.cuts if recipe.tests or recipe.splits else ():
        path, keep = model, cut.keep
        if cut.search or cut.heal:
            path, keep = checkpoints / f"{cut.name}.pt", {}
            keeps.append(path.name)
            # What one search measures, the next need not: shallower ones pass by the deeper ones' choices.
            chosen = ("--search", *flag_words(cut.search), f"--measurements={checkpoints / 'searched.json'}"
                      ) if cut.search else flag_words(cut.keep)
            words = ("prune", str(model), str(places.binary(recipe.data)), *chosen, *flag_words(scaled(cut.heal, budget)),
                     f"--output={path}")
            stages.append(Stage(f"prune {cut.name}", words, makes=(str(path),)))
        measure = _language_model_stages if recipe.is_language_model else _translation_stages
        own_stages, own = measure(recipe, variant, cut, path, keep, folder, places)
        stages += own_stages
        evaluations += own
    if seed == recipe.seeds[0]:
        stages += _analyses(recipe, variant, model, folder, places)
    return RunPlan(recipe.name, variant.name, seed, budget, folder, checkpoints, tuple(stages), tuple(evaluations),
                   tuple(keeps), _digest(recipe, variant, train, train_flags))


def _translation_stages(recipe: Recipe, variant: Variant, cut: Cut, model: Path, keep: Mapping[str, Any], folder: Path,
                        places: Places) -> tuple[list[Stage], list[Evaluation]]:
    stages: list[Stage] = []
    evaluations: list[Evaluation] = []
    text = places.text(recipe.data)
    for test in recipe.tests:
        name = f"{cut.name or WHOLE_NAME}.{test.name}"
        hypotheses, scores = str(folder / f"{name}.hyp"), str(folder / f"{name}.score")
        source = text / f"{test.name}.{recipe.data.endings[0]}"
        flags: dict[str, Any] = {"remove-bpe": recipe.data.has_bpe_marks or None} | variant.decode
        decode = ("interactive", f"--path={model}", f"--input={source}", *flag_words(keep), *flag_words(flags), "--plain",
                  "--buffer-size=100000", f"--json={figures_path(hypotheses)}")
        score = ("score", f"--sys={hypotheses}", *score_words(recipe.data, test, text), f"--json={figures_path(scores)}")
        stages += [Stage(f"decode {name}", decode, hypotheses, (hypotheses,)),
                   Stage(f"score {name}", score, scores, (scores, figures_path(scores)))]
        evaluations.append(Evaluation(cut.name, test.name, f"decode {name}", hypotheses, scores))
    return stages, evaluations


def score_words(data: Dataset, test: TestSet, text: Path) -> list[str]:
    """What `lamina score` is told of a test set, but for the translations."""
    flags = test.score or data.score
    words = flag_words(flags)
    if test.references:
        words += ["--ref", *(str(text / f"{test.name}.ref{number}") for number in range(len(test.references)))]
    if test.m2:
        words += [f"--m2={text / test.name}.m2"]
    if metric_names(flags) & set(metrics_that(need=SOURCES)):
        words += [f"--source={text / test.name}.{data.endings[0]}"]
    return words


def _language_model_stages(recipe: Recipe, variant: Variant, cut: Cut, model: Path, keep: Mapping[str, Any], folder: Path,
                           places: Places) -> tuple[list[Stage], list[Evaluation]]:
    stages: list[Stage] = []
    evaluations: list[Evaluation] = []
    for split in recipe.splits:
        name = f"{cut.name or WHOLE_NAME}.{split}"
        scores = str(folder / f"{name}.score")
        words = ("eval-lm", str(places.binary(recipe.data)), f"--path={model}", f"--gen-subset={split}", *flag_words(keep),
                 *flag_words(variant.decode), f"--json={figures_path(scores)}")
        stages.append(Stage(f"evaluate {name}", words, scores, (scores, figures_path(scores))))
        evaluations.append(Evaluation(cut.name, split, f"evaluate {name}", "", scores))
    return stages, evaluations


def _analyses(recipe: Recipe, variant: Variant, model: Path, folder: Path, places: Places) -> list[Stage]:
    stages = []
    for kind, flags in variant.analyze.items():
        out, binary = folder / f"analysis-{kind}", str(places.binary(recipe.data))
        data = [binary] if kind == "fusion" else ["--data", binary]
        stages.append(Stage(f"analyze {kind}", ("analyze", kind, str(model), *data, f"--out={out}", *flag_words(flags)),
                            makes=(str(out / "index.html"),)))
    return stages


class Comparison(NamedTuple):
    """What one run made of a test set against what another did."""

    plan: RunPlan
    base: RunPlan
    own: Evaluation
    other: Evaluation
    stage: Stage


def plan_comparisons(recipe: Recipe, plans: Sequence[RunPlan], places: Places,
                     baselines: Sequence[RunPlan] = ()) -> list[Comparison]:
    """Every run with the baseline's of its seed: the same cut, or the whole one where that has none."""
    bases = {plan.seed: plan for plan in (*baselines, *plans) if plan.variant == recipe.baseline}
    found = []
    for plan in plans:
        base = bases.get(plan.seed)
        if base is None or base.variant == plan.variant:
            continue
        others = {(one.cut, one.test): one for one in base.evaluations}
        for own in plan.evaluations:
            test = next((test for test in recipe.tests if test.name == own.test), None)
            if test is None or not own.hypotheses or not is_resampled(recipe.data, test):
                continue
            other = others.get((own.cut, own.test)) or others["", own.test]
            output = own.scores.removesuffix(".score") + ".compared"
            words = ("score", f"--sys={own.hypotheses}", f"--baseline={other.hypotheses}",
                     *score_words(recipe.data, test, places.text(recipe.data)), f"--json={figures_path(output)}")
            found.append(Comparison(plan, base, own, other, Stage("compare", words, output, (output,))))
    return found


def is_resampled(data: Dataset, test: TestSet) -> bool:
    """Whether the test set's metrics are ones that `lamina score --baseline` takes."""
    return metric_names(test.score or data.score) <= set(metrics_that(are_of_sacrebleu=True))


def _digest(recipe: Recipe, variant: Variant, train: Mapping[str, Any], train_flags: Sequence[str]) -> str:
    """Two runs with the same digest did the same; notes on them do not count."""
    settings = {"data": recipe.data.digest, "train": train, "more": list(train_flags), "average": recipe.average,
                "model": recipe.model, "decode": variant.decode, "cuts": [_settings(cut) for cut in variant.cuts],
                **({"measure": recipe.measure} if recipe.measure == ON_VALID else {})}
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _settings(cut: Cut) -> dict[str, Any]:
    """Without `heal` where there is none: runs from before there was any keep their digests."""
    return {name: value for name, value in asdict(cut).items() if name != "heal" or value}


def check_stages(title: str, stages: Sequence[Stage], places: Places, train_flags: Sequence[str] = ()) -> None:
    """Every command against the options that there are and the folders that it may reach, before the first one runs."""
    for stage in stages:
        name, rest = find_command(stage.words)
        if paths_in(rest):
            raise ConfigError(f"{title}, {stage.name}: a recipe must not decide what code is run. Take --{USER_DIR} out of it, "
                              "and give it to `lamina recipe run`.")
        cls: Any = load(COMMANDS[name].config)
        try:
            given, _ = parse(f"lamina {name}", cls, "", rest)
            resolve(cls, given)
            if not places.are_trusted:
                typed = parse(f"lamina {name}", cls, "", train_flags)[0] if name == "train" else {}
                check_inside(f"lamina {name}", cls, given, (places.out, places.work, places.downloads), typed)
        except ConfigError as error:
            raise ConfigError(f"{title}, {stage.name}: {error}") from None
