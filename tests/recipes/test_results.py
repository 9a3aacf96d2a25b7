"""Figures off logs, rows and tables."""

import json
import math

import pytest

from lamina.cli import main
from lamina.errors import DataError
from lamina.recipes.results import PUBLISHED_DATA, append_rows, read_rows, render, section, shared_command, spread
from lamina.recipes.run_figures import comparison_figures, decoding_speed, score_figures, training_figures

LOG = """$ lamina train x
{"note": "model"}
{"epoch": 1, "loss": 9.0, "nll_loss": 8.5, "wps": 1000.0, "num_updates": 10, "mem_gib": 1.5}
{"epoch": 1, "where": "valid", "num_updates": 10, "loss": 8.0, "nll_loss": 7.5}
{"epoch": 1, "loss": 7.0, "nll_loss": 6.5, "wps": 3000.0, "num_updates": 20, "mem_gib": 2.0}
{"epoch": 2, "where": "valid", "num_updates": 21, "loss": 8.0, "nll_loss": 7.8}
{"epoch": 2, "los"""


def row(**changes):
    return {"kind": "run", "recipe": "r", "variant": "v", "cut": "", "seed": 1, "budget": 1.0, "status": "done",
            "figures": {"BLEU": 40.0}, "seconds": {"train": 60.0}, "command": "lamina recipe run r", "hardware": "GPU",
            "commit": "abc", **changes}


def test_figures_of_training(tmp_path):
    (tmp_path / "log").write_text(LOG)
    assert training_figures(tmp_path / "log") == {"updates": 21, "train loss": 6.5, "tokens/s": 2000.0, "GiB": 2.0,
                                                  "valid loss": 7.8, "best valid loss": 7.5}
    assert training_figures(tmp_path / "nothing") == {}


def figures(path, content):
    path.write_text(json.dumps(content))
    return path


def test_figures_of_scores(tmp_path):
    """Rounded as they are printed, under the names that tables have."""
    path = tmp_path / "x.score.json"
    assert score_figures(path) == {}
    assert score_figures(figures(path, {"figures": {"bleu": 41.5861, "chrf": 60.1}})) == {"BLEU": 41.59, "chrF": 60.1}
    rouge = {"rouge1": 38.12, "rouge2": 12.9, "rougeL": 30.45, "rougeLsum": 30.44}
    assert score_figures(figures(path, {"figures": rouge})) == {
        "ROUGE-1": 38.12, "ROUGE-2": 12.9, "ROUGE-L": 30.45, "ROUGE-Lsum": 30.44}
    assert score_figures(figures(path, {"figures": {"m2": 45.1, "gleu": 50.12, "errant": 1}})) == {
        "M2": 45.1, "GLEU": 50.12, "ERRANT": 1.0}
    assert score_figures(figures(path, {"figures": {"loss": 4.1, "ppl": 17.434, "word_loss": 5.0, "word_ppl": "inf"}})) == {
        "ppl": 17.43, "word ppl": math.inf}
    compared = {"bleu": {"score": 41.59, "baseline": 41.0, "difference": 0.5901, "p": 0.03121},
                "chrf": {"score": 1, "baseline": 2, "difference": -1.0, "p": 1.0}}
    assert comparison_figures(figures(path, {"figures": {}, "compared": compared})) == {
        "bleu": {"difference": 0.59, "p": 0.0312}, "chrf": {"difference": -1.0, "p": 1.0}}
    path.write_text('{"figures": {"bleu": ')
    with pytest.raises(DataError, match="should hold figures as --json writes them"):
        score_figures(path)
    assert decoding_speed(figures(path, {"figures": {}, "sentences": 6, "tokens": 10, "seconds": 0.1})) == 60.0
    assert decoding_speed(figures(path, {"figures": {"bleu": 1.0}})) is None
    assert decoding_speed(tmp_path / "none.json") is None


def test_the_last_row_about_a_thing_counts(tmp_path):
    path = tmp_path / "results.jsonl"
    append_rows(path, [row(status="failed")])
    append_rows(path, [row(), row(seed=2, figures={"BLEU": 42.0})])
    append_rows(path, [row()])
    assert len(read_rows(path)) == 3
    table = render(read_rows(path))
    assert "| v | 1,2 | done | 41.00 ± 1.41 | 60 ± 0 |" in table
    assert "commit abc" in table


def test_a_line_cut_short_is_forgotten_and_a_strange_one_is_told(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(row()) + "\n" + '{"kind": "ru')
    assert len(read_rows(path)) == 1
    path.write_text("no\n" + json.dumps(row()) + "\n")
    with pytest.raises(DataError, match="line 1 is not a JSON line"):
        read_rows(path)
    assert main(["recipe", "table", str(path)]) == 2
    assert main(["recipe", "table", str(tmp_path / "nothing")]) == 2
    assert "there is no results file" in capsys.readouterr().err.splitlines()[-1]


def test_comparisons_and_statuses():
    compared = {"kind": "comparison", "recipe": "r", "variant": "v", "cut": "", "seed": 1, "budget": 1.0, "baseline": "plain",
                "test": "t", "figures": {"bleu": {"difference": 0.512, "p": 0.0312}}}
    table = render([row(), row(seed=2, status="diverged", figures={}), compared])
    assert "1 done, 1 diverged" in table
    assert "| variant | layers | against | seeds | t BLEU |\n" in table
    assert "| v | all | plain | 1 | +0.51 (0.031) |" in table
    assert render([]) == "No results yet.\n"


def test_comparisons_of_several_seeds_and_tests_stand_in_one_line():
    figures = {"bleu": {"difference": 0.5, "p": 0.01}, "chrf": {"difference": -1.0, "p": 0.5}}
    rows = [{"kind": "comparison", "recipe": "r", "variant": "v", "cut": "half", "seed": seed, "budget": 1.0,
             "baseline": "plain", "test": test, "figures": figures} for seed, test in ((1, "news"), (1, "talks"), (2, "news"))]
    table = render([row(cut="half"), *rows])
    assert "| variant | layers | against | seeds | news BLEU | news chrF | talks BLEU | talks chrF |\n" in table
    both = "+0.50 (0.010), +0.50 (0.010) | -1.00 (0.500), -1.00 (0.500)"
    assert f"| v | half | plain | 1,2 | {both} | +0.50 (0.010), - | -1.00 (0.500), - |" in table


def test_spread():
    assert spread([]) == ""
    assert spread([512345.6]) == "512,346"
    assert spread([1.0, 2.0, 3.0]) == "2.00 ± 1.00"
    assert spread([4000.0, 6000.0]) == "5,000 ± 1,414"


def test_times_are_told_of_runs_that_had_the_machine_to_themselves():
    figures = {"BLEU": 40.0, "sentences/s": 90.0, "updates": 9}
    alone, beside = row(figures=figures), row(variant="w", figures=figures, jobs=2)
    table = render([alone, beside])
    assert "| variant | seeds | status | BLEU | sentences/s | training, s |" in table
    assert "| v | 1 | done | 40.00 | 90.00 | 60 |" in table
    assert "| w | 1 | done | 40.00 |  |  |" in table
    assert "| variant | seeds | status | BLEU |\n" in render([beside])


def test_a_table_has_layers_where_models_were_cut():
    assert "| all | all | 1 | done | 40.00 | 60 |" in render([row(variant="all"), row(variant="all", cut="half")])
    assert "| all | 1 | done | 40.00 | 60 |" in render([row(variant="all")])


def test_a_command_as_others_would_type_it():
    line = "lamina recipe run r --data /my/disk --out=x --stop-after 9 --tier 1 --commit abc --jobs 4"
    assert shared_command(line, "downloads") == "lamina recipe run r --data downloads --tier 1"
    # Whoever ran it reads the folder that it ran on.
    assert shared_command(line) == "lamina recipe run r --data /my/disk --tier 1"
    assert shared_command("lamina recipe run r --data='my disk'") == "lamina recipe run r --data 'my disk'"


def test_only_pages_for_others_name_a_folder_of_downloads():
    own = row(command="lamina recipe run r --data corpora --out x")
    assert "lamina recipe run r --data corpora\n" in render([own])
    page = section("r", [own], PUBLISHED_DATA)
    assert "lamina recipe run r --data downloads\n" in page
    assert "corpora" not in page


def write_logs(folder, runs):
    for run in runs:
        log = folder / "runs" / "r" / run / "logs" / "train.log"
        log.parent.mkdir(parents=True)
        log.write_text(LOG)


def test_figures(tmp_path, capsys):
    rows = [row(seed=1), row(seed=2, figures={"BLEU": 42.0, "updates": 9}), row(variant="w", cut="half"), row(variant="w")]
    append_rows(tmp_path / "results.jsonl", rows)
    write_logs(tmp_path, ["v.seed1", "v.seed2"])
    assert main(["recipe", "table", str(tmp_path), "--figures", str(tmp_path / "figures")]) == 0
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["r-loss.csv", "r-loss.svg", "r.csv", "r.svg"]
    assert (tmp_path / "figures" / "r.csv").read_text().splitlines() == [
        "variant,layers,seeds,BLEU", "v,all,2,41.0000", "w,half,1,40.0000", "w,all,1,40.0000"]
    assert (tmp_path / "figures" / "r-loss.csv").read_text().splitlines()[1] == "v,1,10,7.5000"
    assert (tmp_path / "figures" / "r.svg").stat().st_size < 50_000


def test_a_large_grid_is_a_map_with_a_panel_for_its_first_axis(tmp_path, capsys):
    append_rows(tmp_path / "results.jsonl", [
        row(variant=f"{model}-lr{rate}e-4-b99", figures={"updates": 9, "best valid loss": 7.0 + rate})
        for model in ("post_ln", "pre_ln", "admin") for rate in range(1, 6)])
    assert main(["recipe", "table", str(tmp_path), "--figures", str(tmp_path / "figures")]) == 0
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == ["r.csv", "r.svg"]
    drawing = (tmp_path / "figures" / "r.svg").read_text()
    assert all(drawing.count(f">{label}</text>") == 1 for label in ("post_ln", "admin", "lr1e-4", "lr5e-4"))


def draw_grid(folder, depths, kinds):
    variants = [f"{depth}L-{kind}" for depth in depths for kind in kinds]
    append_rows(folder / "results.jsonl", [row(variant=variant) for variant in variants])
    write_logs(folder, [f"{variant}.seed1" for variant in variants])
    assert main(["recipe", "table", str(folder), "--figures", str(folder / "figures")]) == 0
    return folder / "figures" / "r-loss.svg"


def test_curves_of_a_large_grid_have_a_panel_for_each_value_of_its_first_axis(tmp_path, capsys):
    path = draw_grid(tmp_path, (6, 12, 18), ("post_ln", "pre_ln", "admin", "rezero", "deepnet"))
    drawing = path.read_text()
    assert all(drawing.count(f">{label}</text>") == 1 for label in ("6L", "12L", "18L", "post_ln", "deepnet"))
    assert path.with_suffix(".csv").read_text().splitlines()[1] == "6L-post_ln,1,10,7.5000"


@pytest.mark.parametrize(("num_depths", "num_kinds"), [(5, 3), (1, 15)])
def test_curves_that_nobody_could_read_are_not_drawn(num_depths, num_kinds, tmp_path, capsys):
    assert not draw_grid(tmp_path, range(num_depths), [f"kind{number}" for number in range(num_kinds)]).exists()
