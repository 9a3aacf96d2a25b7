"""Pages of docs/ with figures of recipes: one per recipe, and hand-written ones whose numbers say where they come from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from lamina.recipes.recipe_file import find_recipe
from lamina.recipes.results import PUBLISHED_DATA, RUN, Row, latest, read_rows, section, spread
from speed_page import speed_page

CURRENT, ARCHIVE = "results.jsonl", "results-archive.jsonl"
ARCHIVED = """\
## Measured before

Before 2026-11-18, when the default start of feed-forward blocks and LayerDrop's draws changed; `--ffn-init xavier` and
`--layerdrop-draws update` train as then. These figures are not to be compared with those of today."""


def recipe_pages(folder: Path) -> dict[str, str]:
    """File name -> content: the figures of each recipe that there are rows of."""
    rows, before = read_rows(folder / CURRENT), read_rows(folder / ARCHIVE)
    return {f"results/{name}.md": _recipe_page(name, rows, before, folder)
            for name in dict.fromkeys(row["recipe"] for row in [*rows, *before] if row["kind"] == RUN)}


def _recipe_page(name: str, rows: Sequence[Row], before: Sequence[Row], folder: Path) -> str:
    recipe = find_recipe(name)
    title = recipe.figure.title or name
    blocks = ["<!-- Written by `make docs` from docs/results.jsonl, docs/results-archive.jsonl and the recipe. -->",
              f"# {title}", f"{recipe.about}."]
    if recipe.published:
        blocks.append(f"Published: {recipe.published}.")
    blocks.append(f"Corpus: [{recipe.data.name}](../corpora.md#{recipe.data.name}).")
    is_new, is_old = (any(row["recipe"] == name for row in own) for own in (rows, before))
    if is_new:
        blocks.append(section(name, rows, PUBLISHED_DATA).strip())
    if is_old:
        blocks += ["" if is_new else "Not run again yet.", ARCHIVED]
    blocks += [f"![{title}: {what}](../figures/{name}{ending}.svg)" for ending, what in (("", "scores"), ("-loss", "losses"))
               if (folder / "figures" / f"{name}{ending}.svg").exists()]
    if is_old:
        blocks.append(section(name, before, PUBLISHED_DATA).strip())
    return "\n\n".join(filter(None, blocks)) + "\n"


def figure_pages(folder: Path) -> dict[str, str]:
    rows = read_rows(folder / CURRENT)
    return recipe_pages(folder) | speed_page(folder) | {path.name: with_figures(path.read_text(encoding="utf-8"), rows)
                                   for path in sorted(folder.glob("*.md")) if MARK in path.read_text(encoding="utf-8")}


# A number of a hand-written page, and behind it where it comes from: recipe/variant/cut/figure, or paper. A cut may be empty.
SOURCED = re.compile(r"(?P<shown>[\d.,]+\d|\d)(?P<spread> ± [\d.]+)?(?P<source><!--= ?(?P<keys>[^>]*?) ?-->)")
MARK, PAPER = "<!--=", "paper"


def with_figures(page: str, rows: Sequence[Row]) -> str:
    """The page with each number that names its source set to the mean over seeds, in as many decimals as it has."""
    return SOURCED.sub(lambda found: _figure(found, rows), page)


def _figure(found: re.Match[str], rows: Sequence[Row]) -> str:
    if found["keys"] == PAPER:
        return found[0]
    recipe, variant, cut, name = found["keys"].split("/", 3)
    values = [row["figures"][name] for row in latest(rows) if row["kind"] == RUN and row["recipe"] == recipe
              and row["variant"] == variant and row["cut"] == cut and name in row["figures"]]
    if not values:
        raise SystemExit(f"results.jsonl has no row for {found['keys']}, which a page names.")
    decimals = len(found["shown"].partition(".")[2])
    mean, _, deviation = spread(values, decimals).partition(" ± ")
    return mean + (f" ± {deviation}" if found["spread"] else "") + found["source"]
