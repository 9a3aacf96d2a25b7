"""What `lamina recipe` can be told."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from lamina.config.plug_in_options import PlugInConfig
from lamina.errors import ConfigError
from lamina.fields import REQUIRED, check, flag, part

KEPT = ("model", "all", "none")
TRUST_HELP = ("let recipe and corpus name files outside of the folders given here: only if you know who wrote them")


@dataclass(frozen=True, kw_only=True)
class RecipeListConfig:
    """List."""

    name: str | None = flag(None, "recipe to show in full, by name or path", positional=True)
    tier: int | None = flag(None, "only those with runs in this tier")


@dataclass(frozen=True, kw_only=True)
class RecipeRunConfig:
    """Run."""

    recipe: str = flag(REQUIRED, "recipe, by name or path; several, separated by commas, run one after the other",
                       positional=True)
    data: str = flag(REQUIRED, "folder with the downloads, packed or unpacked", metavar="FOLDER")
    out: str = flag("results", "folder for the results, the logs and the translations: small files", metavar="FOLDER")
    work: str | None = flag(None, "folder for prepared data and checkpoints: large files, which can be made again; work in "
                                  "--out if left out", metavar="FOLDER")
    corpus: str | None = flag(None, "corpus to use instead of the recipe's, such as the same text in another form")
    variants: tuple[str, ...] = flag((), "only these variants", metavar="NAME,..")
    seeds: tuple[int, ...] = flag((), "these seeds instead of the recipe's", metavar="N,..")
    tier: int | None = flag(None, "only the runs of this tier: 1 is what decides, 2 the rest")
    budget: str = flag("1x", "multiply every count of updates: 0.1x is a quick trial, 4x trains longer", metavar="Nx")
    jobs: int = flag(1, "runs at once; with more than one, their times say little")
    stop_after: float = flag(0.0, "stop after this many minutes with all that was done on disk; 0: never", metavar="MINUTES")
    kept: str = flag("model", "checkpoints to leave when a run is done: those that were measured, all, or none",
                     name="keep-checkpoints", choices=KEPT)
    train_flags: str = flag("", "flags to add to every `lamina train`, such as '--fp16 --max-tokens 2048'", metavar="FLAGS")
    workers: int | None = flag(None, "processes that prepare data; without it, one per core")
    commit: str | None = flag(None, "what to note as the commit, where the current folder is no repository")
    trusts_paths: bool = flag(False, TRUST_HELP, name="trust-paths")
    is_dry: bool = flag(False, "print the commands, which can be run by hand, and do nothing", name="dry-run")
    plug_ins: PlugInConfig = part(PlugInConfig)

    def __post_init__(self) -> None:
        check(self.budget_factor > 0, f"--budget is {self.budget}; it must be above 0.")
        check(all(0 <= seed < 2**31 for seed in self.seeds), "--seeds must be whole numbers from 0 to 2^31 - 1.")
        check(self.jobs >= 1, f"--jobs is {self.jobs}; it must be at least 1.")
        check(self.stop_after >= 0, f"--stop-after is {self.stop_after}; it must be 0 (never) or above.")
        check(self.workers is None or self.workers >= 1, f"--workers is {self.workers}; it must be at least 1.")
        check(bool(self.names), "which recipe? `lamina recipe list` shows them.")
        self.train_words  # noqa: B018, an unclosed quote is told now

    @property
    def names(self) -> list[str]:
        return [name for name in self.recipe.split(",") if name]

    @property
    def budget_factor(self) -> float:
        try:
            return float(self.budget.removesuffix("x"))
        except ValueError:
            raise ConfigError(f"--budget is {self.budget!r}; it must be a factor such as 0.1x or 2x.") from None

    @property
    def train_words(self) -> list[str]:
        try:
            return shlex.split(self.train_flags)
        except ValueError as error:
            raise ConfigError(f"--train-flags is {self.train_flags!r}: {error}.") from None


@dataclass(frozen=True, kw_only=True)
class RecipePrepareConfig:
    """Prepare."""

    corpus: str = flag(REQUIRED, "corpus of recipes/data, such as iwslt14_de_en, or the path of such a file", positional=True)
    data: str = flag(REQUIRED, "folder with the downloads, packed or unpacked", metavar="FOLDER")
    out: str = flag(REQUIRED, "folder to write text to", metavar="FOLDER")
    workers: int | None = flag(None, "processes to use; without it, one per core")
    trusts_paths: bool = flag(False, TRUST_HELP, name="trust-paths")

    def __post_init__(self) -> None:
        check(self.workers is None or self.workers >= 1, f"--workers is {self.workers}; it must be at least 1.")


@dataclass(frozen=True, kw_only=True)
class RecipeTableConfig:
    """Table."""

    results: str = flag(REQUIRED, "results file (results.jsonl), or the folder that holds it", positional=True)
    recipe: str | None = flag(None, "only this recipe")
    figures: str | None = flag(None, "folder to draw figures to as well: what was measured by variant, and losses by update "
                                     "where the logs of the runs lie beside the results", metavar="FOLDER")
