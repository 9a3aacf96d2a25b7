"""`lamina recipe run`: from text to a row of results, stopped, killed and gone on with."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lamina.cli import main
from lamina.recipes import runner, worker
from lamina.recipes.plan import Places, plan_run
from lamina.recipes.recipe_file import find_recipe
from lamina.recipes.results import latest, read_rows
from small_recipe import CORPUS, LM_CORPUS, LM_RECIPE, RECIPE, TRAIN, write_downloads, write_recipe

SMALL_ENOUGH = 5 * 2**20  # bytes that a run's records may have


def words(folder, path, *flags, out="out"):
    return ["recipe", "run", str(path), "--data", str(folder / "downloads"), "--out", str(folder / out), "--workers", "1",
            *flags]


def test_from_text_to_results(tmp_path, in_process, capsys):
    path, out = write_recipe(tmp_path), tmp_path / "out"
    assert main(words(tmp_path, path, "--seeds", "3")) == 0
    rows = read_rows(out / "results.jsonl")
    assert [(row["kind"], row["variant"], row["cut"], row["seed"]) for row in rows] == [
        ("run", "plain", "", 3), ("run", "fused", "", 3), ("run", "fused", "half", 3),
        ("comparison", "fused", "", 3), ("comparison", "fused", "half", 3)]
    plain, fused, half, compared, _ = rows
    for row in (plain, fused):
        assert row["status"] == "done"
        assert {"news BLEU", "news chrF", "news sentences/s", "updates", "valid loss", "tokens/s"} <= row["figures"].keys()
        assert row["figures"]["updates"] == 9
        assert row["seconds"]["train"] > 0
        assert row["command"] == shlex.join(["lamina", *words(tmp_path, path, "--seeds", "3")])
        assert row["hardware"]
        assert row["versions"]["lamina"]
    assert "--surfacefusion=att" in fused["train"]
    assert "--seed=3" in fused["train"]
    assert "news BLEU" in half["figures"]
    assert "updates" not in half["figures"]
    assert compared["baseline"] == "plain"
    assert set(compared["figures"]) == {"bleu", "chrf"}
    assert 0 < compared["figures"]["bleu"]["p"] <= 1
    # What is small lies apart from what is large, of which the measured model stays.
    assert sum(file.stat().st_size for file in (out / "runs").rglob("*") if file.is_file()) < SMALL_ENOUGH
    assert [file.name for file in (out / "work" / "checkpoints" / "small" / "fused.seed3").iterdir()] == ["model.pt"]
    table = (out / "results.md").read_text()
    assert "| fused | half | 3 | done |" in table
    # Again: nothing is left to do, and nothing is done.
    capsys.readouterr()
    assert main(words(tmp_path, path, "--seeds", "3")) == 0
    assert "2 of 2 runs are there already" in capsys.readouterr().err
    assert read_rows(out / "results.jsonl") == rows
    assert main(["recipe", "table", str(out)]) == 0
    assert "fused" in capsys.readouterr().out
    # Nor where the large files are gone, and the results file with them.
    shutil.rmtree(out / "work")
    (out / "results.jsonl").unlink()
    assert main(words(tmp_path, path, "--seeds", "3")) == 0
    assert read_rows(out / "results.jsonl") == rows[:3]


def test_settings_are_chosen_on_validation_text(tmp_path, in_process):
    path = write_recipe(tmp_path, recipe={**RECIPE, "measure": "valid"})
    assert main(words(tmp_path, path, "--seeds", "3")) == 0
    runs = [row for row in read_rows(tmp_path / "out" / "results.jsonl") if row["kind"] == "run"]
    assert [row["status"] for row in runs] == ["done"] * 3
    for row in runs:
        assert "valid BLEU" in row["figures"]
        assert "news BLEU" not in row["figures"]


def test_a_language_model_and_its_cuts(tmp_path, in_process):
    path = write_recipe(tmp_path, "lm", LM_RECIPE, LM_CORPUS)
    assert main(words(tmp_path, path)) == 0
    rows = read_rows(tmp_path / "out" / "results.jsonl")
    assert [row["cut"] for row in rows] == ["", "first", "searched"]
    for row in rows:
        assert row["figures"]["valid ppl"] > 1
        assert row["figures"]["test ppl"] > 1
    assert (tmp_path / "out" / "work" / "checkpoints" / "lm" / "default.seed1" / "searched.pt").exists()


def test_a_cut_is_healed_with_a_teacher_and_without(tmp_path, in_process):
    keep = {"encoder-layers-to-keep": "every:2", "decoder-layers-to-keep": "0,"}
    recipe = {**RECIPE, "variants": {"plain": {}}, "seeds": [1], "tiers": {}, "cuts": {
        "half": keep, "healed": {**keep, "heal": {"heal": 6}}, "tuned": {**keep, "heal": {"heal": 6, "distill-weight": 0.0}}}}
    path = write_recipe(tmp_path, recipe=recipe)
    assert main(words(tmp_path, path)) == 0
    rows = read_rows(tmp_path / "out" / "results.jsonl")
    assert [(row["cut"], row["status"]) for row in rows] == [(cut, "done") for cut in ("", "half", "healed", "tuned")]
    assert all("news BLEU" in row["figures"] for row in rows)
    logs = tmp_path / "out" / "runs" / "small" / "plain.seed1" / "logs"
    taught, alone = (next(logs.glob(f"prune*{name}*")).read_text() for name in ("healed", "tuned"))
    assert "learning from" in taught
    assert "learning from" not in alone
    folder = tmp_path / "out" / "work" / "checkpoints" / "small" / "plain.seed1"
    assert sorted(file.name for file in folder.iterdir()) == ["healed.pt", "model.pt", "tuned.pt"]
    # Counts of updates follow the budget.
    recipe = find_recipe(str(path))
    plan = plan_run(recipe, recipe.variants["plain"], 1, Places(*[tmp_path] * 3), budget=0.5)
    assert any("--heal=3" in stage.words for stage in plan.stages)


NARROW = ("--encoder-embed-dim=16 --decoder-embed-dim=16 --encoder-ffn-embed-dim=32 --decoder-ffn-embed-dim=32 "
          "--encoder-attention-heads=2 --decoder-attention-heads=2 --encoder-layers=2 --decoder-layers=2 --log-interval=1 "
          "--distributed-world-size=1")


@pytest.mark.parametrize(("name", "variants"), [("iwslt14_de_en_admin", "6L-admin"),
                                                ("wmt16_en_ro_surfacefusion", "soft"), ("gec", "surface_fusion")])
def test_the_papers_own_set_ups_from_small_files_of_the_same_form(tmp_path, in_process, name, variants):
    """Ten updates of a narrow model, whatever the recipe says; all the rest as it says."""
    pytest.importorskip("sacremoses")
    (tmp_path / "downloads").mkdir()
    recipe = find_recipe(name)
    write_downloads(tmp_path / "downloads", recipe.data)
    flags = ["--variants", variants, "--seeds", "1", "--train-flags", NARROW + " --max-update=10 --keep-last-epochs=-1"]
    assert main(words(tmp_path, name, *flags)) == 0
    rows = [row for row in read_rows(tmp_path / "out" / "results.jsonl") if row["kind"] == "run"]
    assert [row["status"] for row in rows] == ["done"] * len(variants.split(","))
    metric = {"gec": "conll14 M2"}.get(name, f"{recipe.data.tests[0].name} BLEU")
    assert all(metric in row["figures"] for row in rows)


def test_what_diverges_is_a_result_and_what_fails_is_tried_again(tmp_path, in_process, capsys):
    """Whatever happens to one variant, the others go on."""
    variants = {"burst": {"train": {"lr": 1e30, "warmup-updates": 0}}, "broken": {"train": {"restore-file": "broken.pt"}},
                "fine": {}}
    recipe = {**RECIPE, "variants": variants, "baseline": "", "tiers": {}, "seeds": [1],
              "train": {**TRAIN, "clip-norm": 0.0, "max-update": 40, "save-interval-updates": 5}}
    path = write_recipe(tmp_path, "mixed", recipe)
    broken = tmp_path / "out" / "work" / "checkpoints" / "mixed" / "broken.seed1" / "broken.pt"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no checkpoint")
    assert main(words(tmp_path, path)) == 2
    rows = {row["variant"]: row for row in read_rows(tmp_path / "out" / "results.jsonl")}
    assert {name: row["status"] for name, row in rows.items()} == {"burst": "diverged", "broken": "failed", "fine": "done"}
    assert "diverged" in rows["burst"]["message"]
    assert "broken.pt" in rows["broken"]["message"]
    assert "some runs of 1 of 1 recipes failed" in capsys.readouterr().err.splitlines()[-1]
    broken.unlink()
    assert main(words(tmp_path, path)) == 0
    rows = {row["variant"]: row for row in read_rows(tmp_path / "out" / "results.jsonl")}
    assert {name: row["status"] for name, row in rows.items()} == {"burst": "diverged", "broken": "done", "fine": "done"}


def test_a_run_that_learns_nothing_has_stalled(tmp_path, in_process):
    recipe = {**RECIPE, "stalled-above": 0.5, "variants": {"only": {}}, "baseline": "", "tiers": {}, "seeds": [1]}
    assert main(words(tmp_path, write_recipe(tmp_path, recipe=recipe))) == 0
    (row,) = read_rows(tmp_path / "out" / "results.jsonl")
    assert row["status"] == "stalled"
    assert "news BLEU" in row["figures"]


def test_a_run_that_loses_what_it_has_learned_has_stalled(tmp_path, in_process, monkeypatch):
    monkeypatch.setattr(runner, "training_figures", lambda log: {"best valid loss": 8.0, "valid loss": 12.0})
    recipe = {**RECIPE, "stalled-above": 9.0, "variants": {"only": {}}, "baseline": "", "tiers": {}, "seeds": [1]}
    assert main(words(tmp_path, write_recipe(tmp_path, recipe=recipe))) == 0
    (row,) = read_rows(tmp_path / "out" / "results.jsonl")
    assert row["status"] == "stalled"


def test_other_settings_in_the_same_folder_are_refused(tmp_path, in_process, capsys):
    path = write_recipe(tmp_path, recipe={**RECIPE, "variants": {"plain": {}}, "seeds": [1], "tiers": {}})
    assert main(words(tmp_path, path)) == 0
    assert main(words(tmp_path, path, "--train-flags", "--dropout 0.2")) == 2
    assert "holds a run with other settings" in capsys.readouterr().err.splitlines()[-1]


def test_a_baseline_of_an_earlier_command_counts(tmp_path, in_process):
    path = write_recipe(tmp_path)
    assert main(words(tmp_path, path, "--seeds", "1", "--variants", "plain")) == 0
    assert main(words(tmp_path, path, "--seeds", "1", "--variants", "fused")) == 0
    kinds = [row["kind"] for row in read_rows(tmp_path / "out" / "results.jsonl")]
    assert kinds == ["run", "run", "run", "comparison", "comparison"]


def test_comparisons_that_time_did_not_suffice_for_are_made_later(tmp_path, in_process, monkeypatch, capsys):
    path, out = write_recipe(tmp_path), tmp_path / "out"
    original, made = runner.execute_to_file, []

    def stop_after_the_first(stage):
        original(stage)
        made.append(stage)
        monkeypatch.setattr("lamina.recipes.runner.Stopping.is_due", True)

    with monkeypatch.context() as changes:
        changes.setattr("lamina.recipes.runner.execute_to_file", stop_after_the_first)
        assert main(words(tmp_path, path, "--seeds", "1")) == 0
    assert len(made) == 1
    assert "1 of 1 recipes are not finished" in capsys.readouterr().err
    assert [row["cut"] for row in read_rows(out / "results.jsonl") if row["kind"] == "comparison"] == [""]
    monkeypatch.setattr("lamina.recipes.runner.Stopping.is_due", False)
    assert main(words(tmp_path, path, "--seeds", "1,2", "--workers", "2")) == 0
    assert [(row["seed"], row["cut"]) for row in read_rows(out / "results.jsonl") if row["kind"] == "comparison"] == [
        (1, ""), (1, "half"), (2, ""), (2, "half")]


def test_data_of_another_description_is_refused(tmp_path, in_process, capsys):
    path = write_recipe(tmp_path, recipe={**RECIPE, "variants": {"plain": {}}, "seeds": [1], "tiers": {}})
    assert main(words(tmp_path, path)) == 0
    text = tmp_path / "out" / "work" / "data" / "small" / "text"
    (text.parent / "stages.json").unlink()  # killed before it could be noted
    write_recipe(tmp_path, recipe={**RECIPE, "variants": {"other": {}}, "baseline": "", "seeds": [1], "tiers": {}})
    assert main(words(tmp_path, path)) == 0
    write_recipe(tmp_path, recipe={**RECIPE, "variants": {"third": {}}, "baseline": "", "seeds": [1], "tiers": {}},
                 corpus={**CORPUS, "clean": {"max-length": 9}})
    assert main(words(tmp_path, path)) == 2
    assert "was not made from the corpus small as it is described now" in capsys.readouterr().err.splitlines()[-1]


def test_killed_and_gone_on_with(tmp_path):
    """SIGKILL to the command: its worker saves and ends, and the next command trains only what is left."""
    recipe = {**RECIPE, "variants": {"plain": {}}, "seeds": [1], "tiers": {}, "average": None, "model": "checkpoint_last.pt",
              "train": {**TRAIN, "max-update": 250, "max-tokens": 32, "disable-validation": True}}
    path = write_recipe(tmp_path, recipe=recipe)
    command = [sys.executable, "-m", "lamina", *words(tmp_path, path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    last = tmp_path / "out" / "work" / "checkpoints" / "small" / "plain.seed1" / "checkpoint_last.pt"
    _wait(last.exists)
    process.kill()
    process.wait()
    outcome = tmp_path / "out" / "runs" / "small" / "plain.seed1" / "outcome.json"
    _wait(outcome.exists)
    assert json.loads(outcome.read_text())["status"] == "stopped"
    assert not read_rows(tmp_path / "out" / "results.jsonl")
    stopped_after = json.loads(outcome.with_name("stages.json").read_text())["interrupted"]["train"]
    assert updates_done(last) < 250
    subprocess.run(command, env=environment, check=True, stderr=subprocess.DEVNULL)
    (row,) = read_rows(tmp_path / "out" / "results.jsonl")
    assert row["status"] == "done"
    log = (tmp_path / "out" / "runs" / "small" / "plain.seed1" / "logs" / "train.log").read_text()
    assert log.count('"num_updates": 1,') == 1, "the first update was made once"
    assert row["figures"]["updates"] == 250
    assert row["seconds"]["train"] > stopped_after


def updates_done(path):
    from lamina.checkpoint.format import load_checkpoint

    return load_checkpoint(path).training["progress"]["updates"]


def _wait(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)


def test_stop_after_and_go_on(tmp_path, monkeypatch):
    recipe = {**RECIPE, "variants": {"plain": {}}, "seeds": [1], "tiers": {}, "train": {**TRAIN, "max-update": 100000}}
    path = write_recipe(tmp_path, recipe=recipe)
    started = time.monotonic()
    assert main(words(tmp_path, path, "--stop-after", "0.07")) == 0
    assert time.monotonic() - started < 60
    assert not read_rows(tmp_path / "out" / "results.jsonl")


def test_what_is_measured_of_a_stopped_run_counts(tmp_path, in_process, monkeypatch):
    path, out = write_recipe(tmp_path), tmp_path / "out"
    original = worker._outcome
    with monkeypatch.context() as changes:
        changes.setattr("lamina.recipes.worker._outcome", lambda stage: original(stage) if "half" not in stage.name else {
            "status": "stopped", "message": "SIGTERM"})
        main(words(tmp_path, path, "--seeds", "1"))
    stopped = [row for row in read_rows(out / "results.jsonl") if row["kind"] == "run" and row["variant"] == "fused"]
    assert [(row["cut"], row["status"]) for row in stopped] == [("", "stopped")]
    assert "news BLEU" in stopped[0]["figures"]
    assert main(words(tmp_path, path, "--seeds", "1")) == 0
    rows = [row for row in latest(read_rows(out / "results.jsonl")) if row["kind"] == "run" and row["variant"] == "fused"]
    assert [(row["cut"], row["status"]) for row in rows] == [("", "done"), ("half", "done")]
    assert rows[0]["figures"] == stopped[0]["figures"]


def test_a_signal_reaches_the_runs(tmp_path):
    recipe = {**RECIPE, "variants": {"plain": {}}, "seeds": [1], "tiers": {}, "train": {**TRAIN, "max-update": 100000}}
    path = write_recipe(tmp_path, recipe=recipe)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([sys.executable, "-m", "lamina", *words(tmp_path, path)], env=environment,
                               stderr=subprocess.PIPE, text=True)
    _wait((tmp_path / "out" / "work" / "checkpoints" / "small" / "plain.seed1" / "checkpoint_last.pt").exists)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "stopped by SIGINT: the same command resumes from there" in told
    outcome = tmp_path / "out" / "runs" / "small" / "plain.seed1" / "outcome.json"
    assert json.loads(outcome.read_text())["status"] == "stopped"


def test_the_commands_of_a_dry_run_can_be_run_by_hand(tmp_path, capsys):
    path = write_recipe(tmp_path)
    assert main(words(tmp_path, path, "--dry-run", "--seeds", "1", "--budget", "1.0x")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not (tmp_path / "out").exists()
    assert any("--max-update=9 " in line and "--warmup-updates=4 " in line for line in lines)
    for line in lines:
        if line.startswith("mkdir -p "):
            Path(line.split()[2]).mkdir(parents=True)
        if not line.startswith("lamina "):
            continue
        command, _, output = line.partition(" > ")
        capsys.readouterr()
        assert main(shlex.split(command)[1:]) == 0, line
        if output:
            Path(output).write_text(capsys.readouterr().out)
    for score in (tmp_path / "out" / "runs" / "small").rglob("*.score"):
        assert score.read_text().startswith("BLEU4 = ")
    assert len(list((tmp_path / "out" / "runs" / "small").rglob("*.compared"))) == 2


@pytest.mark.parametrize(("flags", "message"), [
    (["--variants", "plane"], "has no variant 'plane'. Did you mean plain"), (["--tier", "7"], "is in tier 7"),
    (["--budget", "much"], "--budget is 'much'"), (["--budget", "0x"], "must be above 0"), (["--seeds", "-1"], "--seeds"),
    (["--jobs", "0"], "--jobs is 0"), (["--train-flags", "'"], "--train-flags"),
    (["--train-flags", "--lr x"], "small plain seed 1"),
    (["--corpus", "multi30k"], "Did you mean multi30k_bpe"), (["--stop-after", "-1"], "--stop-after"),
])
def test_bad_wishes(tmp_path, capsys, flags, message):
    path = write_recipe(tmp_path)
    assert main(words(tmp_path, path, *flags)) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
    assert not (tmp_path / "out").exists()


def test_no_data(tmp_path, capsys, in_process):
    path = write_recipe(tmp_path)
    assert main(["recipe", "run", str(path), "--data", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 2
    assert "is no folder. It should hold train.{lang}" in capsys.readouterr().err
    (tmp_path / "downloads" / "valid.xx").unlink()
    assert main(words(tmp_path, path)) == 2
    error = capsys.readouterr().err
    last = error.splitlines()[-1]
    assert last.startswith("error: corpus small, prepare: ")
    assert error.count("has no valid.xx") == 1
    assert "results.jsonl" not in error
    assert "has no valid.xx" in last
    assert CORPUS["valid"] == ["valid.{lang}"]
