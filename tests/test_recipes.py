"""`lamina train --config` takes a recipe's `train`, and the recipes say what their pages say; tests/recipes/ has the rest."""

from pathlib import Path

import pytest

from lamina.cli import main
from lamina.config.parser import parse, resolve
from lamina.config.train_options import TrainConfig
from lamina.parts.surface_fusion import AttendedFusion, HardFusion
from tiny import TINY_FLAGS, make_data

RECIPES = [Path(__file__).parents[1] / "recipes" / f"{name}.yaml" for name in ("cnn_dm", "dialogsum", "gec")]


def read(path, *flags):
    given, notices = parse("lamina train", TrainConfig, "", ["DATA", "--config", str(path), *flags])
    assert not notices
    return resolve(TrainConfig, given)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_parses_and_flags_win_over_it(path):
    config = read(path, "--max-update", "7")
    assert config.optimization.max_update == 7
    assert config.model.embedding.share_all


def test_what_the_recipes_are_for():
    by_name = {path.stem: read(path) for path in RECIPES}
    assert by_name["gec"].model.surface == AttendedFusion(mode=HardFusion(gate=0.8))
    for name in ("cnn_dm", "dialogsum"):
        assert by_name[name].data.truncate_source
        assert by_name[name].validation.eval_rouge
        assert by_name[name].model.encoder.layer_drop_p > 0


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_trains(path, tmp_path):
    """With a model of a size for tests."""
    pytest.importorskip("rouge_score")
    smaller = [*TINY_FLAGS[2:], "--decoder-embed-dim", "16", "--decoder-ffn-embed-dim", "32"]
    assert main(["train", str(make_data(tmp_path)), "--config", str(path), *smaller, "--max-update", "2", "--update-freq", "1",
                 "--save-dir", str(tmp_path / "out"), "--cpu"]) == 0
    assert (tmp_path / "out" / "checkpoint_last.pt").exists()
