"""A recipe reaches into the folders that the person named, and nowhere else."""

import os
import tarfile

import pytest

from lamina.cli import main
from lamina.command_line import COMMANDS, load
from lamina.config.packaged_recipes import all_names
from lamina.errors import ConfigError, DataError
from lamina.fields import unique_leaves
from lamina.recipes.confine import is_inside, is_path, is_place_inside
from lamina.recipes.plan import Places
from lamina.recipes.recipe_file import find_recipe, read_recipe
from lamina.recipes.runner import Wishes, plan_all
from lamina.recipes.sources import read_place

# Texts among the options of a recipe's commands that name no file.
NO_PATHS = {"arch", "source-lang", "target-lang", "train-subset", "valid-subset", "gen-subset", "f1-label", "metric",
            "classification-head-name", "encoder-layers-to-keep", "decoder-layers-to-keep", "eval-bleu-remove-bpe",
            "remove-bpe", "model-overrides", "rouge-separator", "sentence", "target", "split",
            "wandb-project", "mlflow-experiment", "trackio-project", "encoder-reads", "decoder-reads", "layerdrop-schedule",
            "freeze", "lora-train-also", "profile"}
COMMANDS_OF_RECIPES = ("preprocess", "train", "average", "prune", "score", "interactive", "eval-lm", "analyze fusion",
                       "analyze depth")

CORPUS = "languages: [en, de]\ntrain: [{place}]\nvalid: [\"valid.{{lang}}\"]\ntests: {{t: \"test.{{lang}}\"}}\n"
RECIPE = "data: corpus\nseeds: [1]\ntrain: {max-tokens: 64, max-update: 2}\n"


@pytest.mark.parametrize("name", COMMANDS_OF_RECIPES)
def test_each_option_is_known_to_be_a_path_or_none(name):
    for leaf in unique_leaves(load(COMMANDS[name].config)):
        if "str" in str(leaf.type) and leaf.info.choices is None:
            assert is_path(leaf) != (leaf.name in NO_PATHS), f"lamina {name} --{leaf.name}: is it a path?"


@pytest.fixture
def folders(tmp_path):
    for name in ("data", "out", "recipe/data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "secret.en").write_text("a secret\n" * 3)
    (tmp_path / "secret.de").write_text("a secret\n" * 3)
    for split in ("train", "valid", "test"):
        for language in ("en", "de"):
            (tmp_path / "data" / f"{split}.{language}").write_text("a b\n" * 3)
    return tmp_path


def write(folders, corpus='"train.{lang}"', recipe=RECIPE, more=""):
    (folders / "recipe" / "data" / "corpus.yaml").write_text(CORPUS.format(place=corpus) + more)
    (folders / "recipe" / "mine.yaml").write_text(recipe)
    return folders / "recipe" / "mine.yaml"


def plan(path, folders, *, are_trusted=False, train_flags=()):
    places = Places(folders / "out", folders / "out" / "work", folders / "data", are_trusted)
    recipe = read_recipe(path)
    return plan_all(recipe, places, Wishes(tuple(recipe.runs()), train_flags=train_flags))


@pytest.mark.parametrize("place", ["../secret.{lang}", "/etc/passwd", "a.tgz!../../secret.{lang}", "a.tgz|../b.tgz!x",
                                   "x/../../s", "~/secret.{lang}", "..\\\\secret.{lang}"])
def test_places_of_a_corpus(folders, place, capsys):
    path = write(folders, f'"{place}"')
    with pytest.raises(ConfigError, match=r"leads out of --data, the folder that it may read\. Add --trust-paths"):
        plan(path, folders)
    corpus = folders / "recipe" / "data" / "corpus.yaml"
    assert main(["recipe", "prepare", str(corpus), "--data", str(folders / "data"), "--out", str(folders / "text")]) == 2
    assert "leads out of --data" in capsys.readouterr().err
    assert not (folders / "text").exists()


def test_the_person_may_trust_a_corpus(folders):
    write(folders, '"../secret.{lang}"')
    words = ["recipe", "prepare", str(folders / "recipe/data/corpus.yaml"), "--data", str(folders / "data"), "--out",
             str(folders / "text"), "--workers", "1"]
    assert main(words) == 2
    assert main([*words, "--trust-paths"]) == 0
    assert (folders / "text" / "train.en").read_text() == "a secret\n" * 3
    stages, _ = plan(folders / "recipe" / "mine.yaml", folders, are_trusted=True)
    assert "--trust-paths" in stages[0].words


def test_links_of_the_person_are_followed_and_those_inside_are_not(folders):
    (folders / "elsewhere").mkdir()
    (folders / "elsewhere" / "a.en").write_text("mine\n")
    os.symlink(folders / "elsewhere", folders / "data" / "mine")
    assert list(read_place(folders / "data", "mine/a.en")) == ["mine"]
    (folders / "data" / "unpacked").mkdir()
    os.symlink(folders / "secret.en", folders / "data" / "unpacked" / "b.en")
    for place in ("unpacked/b.en", "unpacked.tgz!b.en"):
        with pytest.raises(DataError, match="lies outside of"):
            list(read_place(folders / "data", place))
    assert list(read_place(folders / "data", "unpacked/b.en", is_confined=False)) == ["a secret"] * 3
    assert not is_inside(folders / "data" / ".." / "secret.en", folders / "data")
    assert is_place_inside("a.tgz|b.zip!dev/x..y|z")


def test_a_link_in_an_archive_leads_nowhere(folders):
    with tarfile.open(folders / "data" / "a.tar", "w") as archive:
        link = tarfile.TarInfo("x.en")
        link.type, link.linkname = tarfile.SYMTYPE, str(folders / "secret.en")
        archive.addfile(link)
    with pytest.raises(DataError, match=r"has no x.en in it"):
        list(read_place(folders / "data", "a.tar!x.en"))


@pytest.mark.parametrize(("recipe", "more", "option"), [
    (RECIPE + "train: {max-tokens: 64, tensorboard-logdir: /tmp/elsewhere}\n", "", "tensorboard-logdir /tmp/elsewhere"),
    (RECIPE + "train: {max-tokens: 64, finetune_from_model: ../x.pt}\n", "", "finetune-from-model ../x.pt"),
    (RECIPE + "train: {max-tokens: 64, distributed-world-size: 2, distributed-init-method: 'tcp://x:1'}\n", "",
     "distributed-init-method tcp"),
    (RECIPE, "preprocess: {destdir: ../../elsewhere}\n", "destdir ../../elsewhere"),
    (RECIPE, "preprocess: {trainpref: /etc/passwd}\n", "trainpref /etc/passwd"),
    (RECIPE + "analyze: {fusion: {out: /tmp/elsewhere}}\n", "", "out /tmp/elsewhere"),
    (RECIPE + "decode: {input: /etc/passwd}\n", "", "input /etc/passwd"),
    (RECIPE, "score: {sys: /etc/passwd}\n", "sys /etc/passwd"),
])
def test_options_of_a_recipe(folders, recipe, more, option):
    path = write(folders, recipe=recipe, more=more)
    with pytest.raises(ConfigError, match=rf"--{option}.* leads out of --data, --out and --work"):
        plan(path, folders)
    plan(path, folders, are_trusted=True)


def test_options_inside_and_those_that_the_person_typed(folders):
    inside = folders / "out" / "board"
    plan(write(folders, recipe=RECIPE + f"train: {{max-tokens: 64, tensorboard-logdir: '{inside}'}}\n"), folders)
    plan(write(folders), folders, train_flags=("--tensorboard-logdir=/tmp/elsewhere",))
    plan(write(folders, recipe=RECIPE + "train: {max-tokens: 64, restore-file: checkpoint_best.pt}\n"), folders)


def test_names_that_are_no_names(folders):
    with pytest.raises(ConfigError, match="must be plain names"):
        read_recipe(write(folders, recipe=RECIPE + "model: ../../x.pt\n"))


def test_our_own_recipes_stay_inside(tmp_path):
    for name in all_names():
        recipe = find_recipe(name)
        plan_all(recipe, Places(tmp_path / "a,b:c", tmp_path / "w", tmp_path / ".." / "d"), Wishes(tuple(recipe.runs()[:1])))
