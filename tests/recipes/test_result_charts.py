import csv

import pytest

from lamina.errors import ConfigError
from lamina.recipes.recipe_file import FigureWords, grid_parts, read_recipe
from lamina.recipes.result_charts import draw_recipes

TRAIN = "lamina train DATA --encoder-layers=12 --decoder-layers=6"


def row(variant, value, cut="", recipe="fusion_multi30k", seed=1, train=TRAIN, seconds=10.0):
    return {"kind": "run", "recipe": recipe, "variant": variant, "cut": cut, "seed": seed, "budget": 1.0, "train": train,
            "figures": {"flickr2016 BLEU": value, "best valid loss": value}, "seconds": {"train": seconds}}


def drawn(tmp_path, rows):
    draw_recipes(rows, tmp_path / "runs", tmp_path)
    name = rows[0]["recipe"]
    with (tmp_path / f"{name}.csv").open() as file:
        return (tmp_path / f"{name}.svg").read_text(), list(csv.DictReader(file))


def test_variants_are_called_as_people_call_them(tmp_path):
    figure, numbers = drawn(tmp_path, [row("plain", 40.0), row("plain", 42.0, seed=2), row("hard", 43.0)])
    assert "SurfaceFusion, hard" in figure
    assert "Layer fusion on Multi30k De-En" in figure
    assert [(own["variant"], own["seeds"], own["flickr2016 BLEU"]) for own in numbers] == [("plain", "2", "41.0000"),
                                                                                          ("hard", "1", "43.0000")]


def test_cuts_lie_on_an_axis_of_layers_and_odd_ones_stand_apart(tmp_path):
    figure, numbers = drawn(tmp_path, [row("plain", 40.0), row("plain", 30.0, "6L-3L"), row("plain", 20.0, "12L-3L")])
    assert "layers, encoder and decoder together" in figure
    assert "12 + 3" in figure
    assert {own["layers"] for own in numbers} == {"all", "6L-3L", "12L-3L"}


def test_rules_of_cutting_have_a_line_each(tmp_path):
    rows = [row("one", 40.0, recipe="unknown", train="lamina train D --decoder-layers=16")]
    rows += [row("one", 30.0, cut, "unknown", train=rows[0]["train"]) for cut in ("8_even", "8_first")]
    figure, _ = drawn(tmp_path, rows)
    assert ">first<" in figure.replace(" ", "")
    assert "encoder" not in figure


def test_speed_is_drawn_against_seconds(tmp_path):
    figure, _ = drawn(tmp_path, [row("quick_400", 40.0, recipe="speed_multi30k", seconds=12.5)])
    assert "seconds from command to exit" in figure
    assert "16,384 tokens, 400 updates" in figure


def test_a_large_grid_is_a_map(tmp_path):
    names = [f"{norm}-lr{rate}e-4-b{beta}" for norm in ("post_ln", "admin") for rate in range(1, 5) for beta in (990, 999)]
    rows = [row(name, 5.0 + number / 7, recipe="admin_no_warmup") for number, name in enumerate(names)]
    for own in rows:
        del own["figures"]["flickr2016 BLEU"]
    draw_recipes(rows, tmp_path / "runs", tmp_path)
    figure = (tmp_path / "admin_no_warmup.svg").read_text()
    assert "Post-LN" in figure
    assert "best validation loss, bits per token" in figure
    assert figure.count(">7.1<") == 1


def test_names_of_a_grid_keep_their_exponents():
    assert grid_parts("admin-lr5e-4-b999") == ["admin", "lr5e-4", "b999"]
    assert FigureWords(labels={"lr5e-4": "5e-4"}).label("admin-lr5e-4") == "admin, 5e-4"


def test_an_axis_that_there_is_not(tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text("data: multi30k_bpe\nagainst: hours\n")
    with pytest.raises(ConfigError, match="against is 'hours'; it can be `seconds`"):
        read_recipe(path)
