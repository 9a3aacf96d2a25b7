"""Recipe files: those that we ship are whole, and mistakes in one's own are told in a line."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from lamina.cli import main
from lamina.config.packaged_recipes import all_names, folders
from lamina.config.parser import parse, resolve
from lamina.config.train_options import TrainConfig
from lamina.errors import ConfigError
from lamina.recipes.plan import Places, plan_run
from lamina.recipes.recipe_file import find_recipe, read_recipe, scaled
from lamina.recipes.runner import Wishes, plan_all
from small_recipe import RECIPE, write_recipe

ROOT = Path(__file__).parents[2]
DEEP = 18  # layers; beyond, another one is like those below
PLACES = Places(Path("out"), Path("work"), Path("downloads"))
NAMES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))
SMALLER = ("--encoder-embed-dim=16", "--decoder-embed-dim=16", "--encoder-ffn-embed-dim=16", "--decoder-ffn-embed-dim=16",
           "--encoder-attention-heads=2", "--decoder-attention-heads=2")


def test_they_are_found():
    assert all_names() == NAMES
    assert folders()[0] == ROOT / "recipes"


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_agrees_with_the_options(name):
    """All commands of all variants parse, as before a run."""
    recipe = find_recipe(name)
    assert recipe.about
    _, plans = plan_all(recipe, PLACES, Wishes(tuple(recipe.runs())))
    assert len({(plan.folder, plan.checkpoints) for plan in plans}) == len(plans)
    for tier in recipe.tiers:
        assert recipe.runs(tier)


@pytest.mark.parametrize("name", NAMES)
def test_every_model_builds(name):
    """At its depth, or 18 layers of it, without memory; those that others have too once."""
    recipe = find_recipe(name)
    built = set()
    for variant in recipe.variants.values():
        train = plan_run(recipe, variant, 1, PLACES).stages[0]
        narrow = [flag for flag in SMALLER if not recipe.is_language_model or "decoder" in flag]
        given, notices = parse("lamina train", TrainConfig, "", [*train.words[1:], *narrow])
        assert not notices
        config = resolve(TrainConfig, given)
        assert config.optimization.max_update or config.optimization.max_epoch, "a recipe ends"
        model = replace(config.model, **{side: replace(stack, num_layers=min(stack.num_layers, DEEP)) for side, stack in
                                         (("encoder", config.model.encoder), ("decoder", config.model.decoder))})
        if str(model) in built:
            continue
        built.add(str(model))
        sizes = (100_000,) if recipe.is_language_model else (100, 100)
        with torch.device("meta"):
            blocks = config.kind.build_model(model, sizes)
        assert sum(parameter.numel() for parameter in blocks.parameters()) > 0


def test_tier_one_is_what_was_asked_for():
    """At most 25 runs: fusion in three seeds, the deep models once, one language model with and without, all three together."""
    runs = {name: find_recipe(name).runs(1) for name in NAMES if find_recipe(name).tiers.get(1)}
    assert sum(map(len, runs.values())) <= 25
    assert runs["fusion_multi30k"] == [(name, seed) for seed in (1, 2, 3)
                                       for name in ("plain", "transparent_embedding", "hard", "soft")]
    assert runs["admin_depth"] == [("18L-post_ln", 1), ("18L-pre_ln", 1), ("18L-admin", 1)]
    assert runs["admin_very_deep"] == [("100L-100L-post_ln", 1), ("100L-100L-admin", 1)]
    assert runs["layerdrop_lm"] == [("layerdrop_0", 1), ("layerdrop_0.2", 1)]
    assert runs["together"] == [("all", 1)]
    assert len(find_recipe("admin_no_warmup").variants) == 45


def test_a_second_tier_is_the_rest():
    recipe = find_recipe("admin_depth")
    assert set(recipe.runs(1)) | set(recipe.runs(2)) == set(recipe.runs())
    assert not set(recipe.runs(1)) & set(recipe.runs(2))


def test_a_budget_scales_what_counts_updates():
    flags = {"max-update": 3000, "warmup-updates": 5, "lr": 0.1, "save-interval-updates": 0, "total-num-update": 100}
    assert scaled(flags, 0.1) == {"max-update": 300, "warmup-updates": 1, "lr": 0.1, "save-interval-updates": 0,
                                  "total-num-update": 10}


def test_a_variant_takes_the_place_of_the_common_value(tmp_path):
    recipe = read_recipe(write_recipe(tmp_path, recipe={**RECIPE, "variants": {
        "a": {"train": {"max_tokens": 9, "lr": None}}, "b": {}}, "baseline": "a", "tiers": {}}))
    words = plan_run(recipe, recipe.variants["a"], 1, PLACES).stages[0].words
    assert [word for word in words if word.startswith(("--max-tokens", "--lr"))] == ["--max-tokens=9"]


def test_a_grid_has_all_combinations(tmp_path):
    axes = [{"x": None, "y": {"dropout": 0.2}}, {"1": {"lr": 0.1}, "2": {"lr": 0.2}}]
    recipe = read_recipe(write_recipe(tmp_path, recipe={**RECIPE, "variants": None, "grid": axes, "baseline": "", "tiers": {}}))
    assert list(recipe.variants) == ["x-1", "x-2", "y-1", "y-2"]
    assert recipe.variants["y-2"].train["dropout"] == 0.2
    assert recipe.variants["y-2"].train["lr"] == 0.2


def test_the_digest_is_of_the_settings_alone(tmp_path):
    recipe = read_recipe(write_recipe(tmp_path))
    elsewhere = Places(Path("a"), Path("b"), Path("c"))
    plain, fused = recipe.variants["plain"], recipe.variants["fused"]
    digest = plan_run(recipe, plain, 1, PLACES).digest
    assert plan_run(recipe, plain, 2, elsewhere).digest == digest
    assert plan_run(recipe, fused, 1, PLACES).digest != digest
    assert plan_run(recipe, plain, 1, PLACES, budget=0.5).digest != digest


@pytest.mark.parametrize(("change", "message"), [
    ({"data": "nothing"}, "there is no corpus 'nothing'"), ({"data": None}, "data must name a corpus"),
    ({"varaints": {}}, "unknown key 'varaints'. Did you mean variants"),
    ({"baseline": "x"}, "baseline 'x' is none of the variants"),
    ({"seeds": []}, "seeds must be a list"), ({"tiers": {1: {"variants": ["x"]}}}, "tier 1 names 'x'"),
    ({"tiers": [1]}, "tiers must"),
    ({"variants": {"a/b": {}}}, "must have a name"), ({"variants": {"plain": {"trian": {}}}}, "variant plain: unknown key"),
    ({"cuts": {"half": {}}}, "needs the layers to keep"), ({"cuts": {"h": {"encoder-layers": 3}}}, "cut h: unknown key"),
    ({"train": 3}, "train must be a mapping"), ({"grid": {"a": 1}}, "grid must be a list"),
    ({"analyze": {"speed": {}}}, "analyze"),
    ({"stalled-above": "high"}, "stalled-above is 'high'"), ({"measure": "bleu"}, "measure is 'bleu'"),
])
def test_bad_recipes(tmp_path, change, message):
    path = write_recipe(tmp_path)
    path.write_text(yaml.safe_dump({**RECIPE, **change}))
    with pytest.raises(ConfigError, match=message) as caught:
        read_recipe(path)
    assert "\n" not in str(caught.value)


def test_an_unknown_recipe(capsys):
    assert main(["recipe", "run", "fusion_multi", "--data", "x"]) == 2
    assert "there is no recipe 'fusion_multi'. Did you mean fusion_multi30k?" in capsys.readouterr().err
    assert main(["recipe"]) == 0
    assert main(["recipe", "cook"]) == 2
    assert "must be followed by list or run or prepare or table" in capsys.readouterr().err


def test_the_list(capsys):
    assert main(["recipe", "list"]) == 0
    shown = capsys.readouterr().out
    for name in NAMES:
        assert f"\n{name} " in f"\n{shown}"
    assert len(shown.splitlines()) < 3 * len(NAMES)
    assert main(["recipe", "list", "admin_no_warmup"]) == 0
    assert "post_ln-lr3e-4-b995" in (one := capsys.readouterr().out)
    assert "tier 2: 45 runs" in one
    assert main(["recipe", "list", "--tier", "7"]) == 2
    assert "no recipe has a tier 7. There are 1, 2, 3." in capsys.readouterr().err
    assert main(["recipe", "list", "--tier", "1"]) == 0
    assert "wikitext103" not in capsys.readouterr().out


def test_a_recipe_without_a_threshold_never_stalls():
    assert find_recipe("fusion_multi30k").stalled_above == math.inf
