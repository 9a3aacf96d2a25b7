"""Checkpoints that were written before variants became parts load, and give the numbers that they gave then."""

import json
from pathlib import Path

import pytest
import torch

import lamina
from lamina.checkpoint.format import load_checkpoint
from lamina.parts.encoder_fusion import TransparentFusion
from lamina.parts.position_kinds import Learned
from lamina.parts.residuals import Admin, DeepNet

FOLDER = Path(__file__).parent.parent / "fixtures" / "checkpoints_0_1"
EXPECTED = json.loads((FOLDER / "expected.json").read_text(encoding="utf-8"))


def assert_scores(found, expected):
    for score, own in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(score.token_scores), torch.tensor(own), rtol=1e-5, atol=1e-5)


def test_their_words_are_todays():
    config = load_checkpoint(FOLDER / "pairs.pt").model_config()
    assert isinstance(config.init, Admin)
    # Both switches were given: the mix was meant.
    assert config.fusion == TransparentFusion(reads_embedding=True)
    assert (config.encoder.positions == Learned(), config.decoder.positions == Learned()) == (True, False)
    config = load_checkpoint(FOLDER / "lm.pt").model_config()
    assert (config.init, config.decoder.positions) == (DeepNet(), Learned())


def test_a_fused_admin_model_gives_the_same_numbers():
    model, expected = lamina.load(FOLDER / "pairs.pt", device="cpu"), EXPECTED["pairs"]
    assert_scores(model.score(map(tuple, expected["pairs"])), expected["log_probs"])
    sources = [source for source, _ in expected["pairs"]]
    assert [found.text for found in model.translate(sources, beam=3)] == expected["translations"]


def test_pruned_on_loading_too():
    model = lamina.load(FOLDER / "pairs.pt", device="cpu", encoder_layers_to_keep=[1, 2], decoder_layers_to_keep=[0],
                        notice=lambda text: None)  # its decoder has not learned to do without layers
    assert_scores(model.score(map(tuple, EXPECTED["pairs"]["pairs"])), EXPECTED["pairs"]["pruned_log_probs"])


def test_an_adaptive_language_model_gives_the_same_numbers():
    model = lamina.load(FOLDER / "lm.pt", device="cpu")
    assert_scores(model.score(EXPECTED["lm"]["lines"]), EXPECTED["lm"]["log_probs"])


@pytest.mark.parametrize("name", ["pairs.pt", "lm.pt"])
def test_their_weights_keep_their_names(name):
    checkpoint = load_checkpoint(FOLDER / name)
    built = dict(checkpoint.build_model().named_parameters())
    assert built.keys() == checkpoint.weights.keys()
