"""A recipe on a GPU: training with recorded updates and decoding share a process, and runs share the device."""

import pytest
import torch

from lamina.cli import main
from lamina.recipes.results import read_rows
from small_recipe import LM_CORPUS, LM_RECIPE, write_recipe

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def run(folder, path):
    return main(["recipe", "run", str(path), "--data", str(folder / "downloads"), "--out", str(folder / "out"), "--jobs", "2",
                 "--workers", "1"])


def test_runs_share_the_device(tmp_path):
    assert run(tmp_path, write_recipe(tmp_path)) == 0
    rows = [row for row in read_rows(tmp_path / "out" / "results.jsonl") if row["kind"] == "run"]
    assert len(rows) == 6
    assert {row["status"] for row in rows} == {"done"}
    assert all(torch.cuda.get_device_name(0) in row["hardware"] for row in rows)


def test_a_language_model_and_its_cuts(tmp_path):
    assert run(tmp_path, write_recipe(tmp_path, "lm", LM_RECIPE, LM_CORPUS)) == 0
    assert [row["cut"] for row in read_rows(tmp_path / "out" / "results.jsonl")] == ["", "first", "searched"]
