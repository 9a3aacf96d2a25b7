"""`lamina recipe`: experiments, from what one downloads to a table of results."""

from __future__ import annotations

import json
import shlex
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

from lamina import console, provenance
from lamina.config.packaged_recipes import all_names
from lamina.config.recipe_options import RecipeListConfig, RecipePrepareConfig, RecipeRunConfig, RecipeTableConfig
from lamina.errors import ConfigError, DataError
from lamina.recipes.dataset import Dataset, read_dataset
from lamina.recipes.origins import compared, origin
from lamina.recipes.plan import Places, plan_comparisons
from lamina.recipes.recipe_file import Recipe, find_dataset, find_recipe
from lamina.recipes.results import FILE_NAME, read_rows, render
from lamina.suggestions import suggestion

WIDEST = 120  # of a line of the list


def show_list(config: RecipeListConfig) -> None:
    if config.name is not None:
        _show_one(find_recipe(config.name))
        return
    recipes = [find_recipe(name) for name in all_names()]
    tiers_there = sorted({tier for recipe in recipes for tier in recipe.tiers})
    if config.tier is not None and config.tier not in tiers_there:
        raise ConfigError(f"no recipe has a tier {config.tier}. There are {', '.join(map(str, tiers_there))}.")
    shown = [recipe for recipe in recipes if config.tier is None or recipe.tiers.get(config.tier)]
    rows = [(recipe.name, str(len(recipe.runs(config.tier))), recipe.data.name, recipe.about) for recipe in shown]
    heads = ("recipe", "runs", "corpus", "what it compares")
    widths = [max(len(row[column]) for row in [heads, *rows]) for column in range(3)]
    room = max(20, min(shutil.get_terminal_size((120, 24)).columns, WIDEST) - sum(widths) - 2 * len(widths))
    for *cells, about in [heads, *rows]:
        first, *rest = textwrap.wrap(about, room)
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)), first, sep="  ")
        for line in rest:
            print(" " * (sum(widths) + 2 * len(widths) - 1), line)
    print("\n`lamina recipe list NAME` shows one in full; `lamina recipe run NAME --data FOLDER` runs it.")


def _show_one(recipe: Recipe) -> None:
    tiers = [f"tier {tier}: {len(runs)} runs" for tier, runs in recipe.tiers.items()] or [f"{len(recipe.runs())} runs"]
    print(f"{recipe.name}: {recipe.about}", f"published: {recipe.published}" if recipe.published else "no published figures",
          f"corpus {recipe.data.name}: {recipe.data.about}", *files_in_words(recipe.data),
          f"seeds {', '.join(map(str, recipe.seeds))}; {', '.join(tiers)} (tier 1 is what decides, 2 the rest)",
          "variants:", sep="\n")
    for name, variant in recipe.variants.items():
        print(f"  {name}" + (f": {variant.about}" if variant.about else ""))


def files_in_words(dataset: Dataset) -> list[str]:
    """A line for each file to download: its name, and how to come by it."""
    found = {name.replace("|", " or "): origin(dataset.downloads, name) for name in dataset.files}
    return [f"  {name}" + (f": {own.how()}" if own is not None else "") for name, own in found.items()]


def run(config: RecipeRunConfig) -> None:
    from lamina.recipes.runner import Wishes, plan_all, run_recipes

    recipes = [find_recipe(name) for name in config.names]
    if config.corpus is not None:
        recipes = [replace(recipe, data=find_dataset(config.corpus)) for recipe in recipes]
    out, command = Path(config.out), provenance.command_line()
    places = Places(out, Path(config.work) if config.work is not None else out / "work", Path(config.data), config.trusts_paths)

    def wishes_of(recipe: Recipe) -> Wishes:
        return Wishes(tuple(chosen_runs(config, recipe)), config.budget_factor, config.jobs, config.kept,
                      tuple(config.train_words), config.workers, command, config.commit or provenance.commit(),
                      config.plug_ins.user_dir)

    if not any(wishes_of(recipe).runs for recipe in recipes):
        raise ConfigError(f"no run of {config.recipe} is in tier {config.tier}. `lamina recipe list` shows the tiers.")
    if config.is_dry:
        for recipe in recipes:
            data_stages, plans = plan_all(recipe, places, wishes_of(recipe))
            print(f"# {recipe.name}: corpus {recipe.data.name}", *(stage.line for stage in data_stages), sep="\n")
            for plan in plans:
                print(f"\n# {plan.title}", f"mkdir -p {shlex.quote(str(plan.folder))}", *(stage.line for stage in plan.stages),
                      sep="\n")
            if comparisons := plan_comparisons(recipe, plans, places):
                print(f"\n# against {recipe.baseline}", *(found.stage.line for found in comparisons), sep="\n")
        return
    if not places.downloads.is_dir():
        raise DataError(f"--data {places.downloads} is no folder. It should hold {', '.join(recipes[0].data.archives)}; "
                        f"`lamina recipe list {recipes[0].name}` says where they come from.")
    run_recipes(recipes, places, wishes_of, config.stop_after)


def chosen_runs(config: RecipeRunConfig, recipe: Recipe) -> list[tuple[str, int]]:
    """Variant and seed: of a tier or of all, cut down to what is named."""
    for name in config.variants:
        if name not in recipe.variants:
            hint = suggestion(name, recipe.variants).replace("--", "")
            raise ConfigError(f"recipe {recipe.name} has no variant {name!r}.{hint} It has {', '.join(recipe.variants)}.")
    runs = recipe.runs(config.tier)
    if config.seeds:
        runs = [(name, seed) for seed in config.seeds for name in dict.fromkeys(name for name, _ in runs)]
    return [(name, seed) for name, seed in runs if not config.variants or name in config.variants]


def prepare(config: RecipePrepareConfig) -> None:
    from lamina.preprocess.workers import available_cores
    from lamina.recipes.prepare import REPORT_NAME, prepare

    is_path = config.corpus.endswith((".yaml", ".yml")) or "/" in config.corpus
    dataset = read_dataset(Path(config.corpus)) if is_path else find_dataset(config.corpus)
    counts = prepare(dataset, Path(config.data), Path(config.out), workers=config.workers or available_cores(),
                     progress=console.progress, is_confined=not config.trusts_paths)
    for split, count in counts.items():
        left_out = ", ".join(f"{number} {reason}" for reason, number in count.items() if reason != "lines")
        print(f"| {split}: {count['lines']} lines" + (f", left out: {left_out}" if left_out else ""))
    for file, digest in json.loads((Path(config.out) / REPORT_NAME).read_text())["files"].items():
        print(f"| {compared(file, digest, dataset.downloads)}")
    print(f"| wrote {config.out}")


def show_table(config: RecipeTableConfig) -> None:
    path = Path(config.results)
    path = path / FILE_NAME if path.is_dir() else path
    if not path.exists():
        raise DataError(f"there is no results file {path}. `lamina recipe run` makes one.")
    rows = [row for row in read_rows(path) if config.recipe in (None, row["recipe"])]
    print(render(rows), end="")
    if config.figures is not None:
        from lamina.recipes.result_charts import draw_recipes

        for file in draw_recipes(rows, path.parent / "runs", Path(config.figures)):
            console.notice(f"wrote {file}")
