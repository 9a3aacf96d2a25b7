"""--init-type: what may be combined with it."""

from dataclasses import replace

import pytest

from lamina.cli import main
from lamina.config.model import ModelConfig
from lamina.errors import ConfigError
from lamina.fields import build, flatten
from lamina.parts.residuals import DeepNet
from lamina.registry import register


@pytest.mark.parametrize("kind", register.residual)
def test_every_kind_survives_its_flat_form(kind):
    config = build(ModelConfig, {"init-type": kind, "encoder-normalize-before": kind == "layernorm-scaling"})
    assert build(ModelConfig, flatten(config)) == config


@pytest.mark.parametrize("side", ["encoder", "decoder"])
@pytest.mark.parametrize(("kind", "why"), [("admin", "Pre-LN never normalises"), ("adaptive", "Pre-LN never normalises"),
                                           ("admin-closed-form", "Pre-LN never normalises"),
                                           ("deepnet", "ahead of Post-LN's norm"), ("rezero", "has no LayerNorm")])
def test_kinds_that_need_post_norm(side, kind, why):
    with pytest.raises(ConfigError, match=f"{why}.* Add --no-{side}-normalize-before"):
        build(ModelConfig, {"init-type": kind, f"{side}-normalize-before": True})


def test_rezero_postln_keeps_the_norms_where_they_are():
    assert build(ModelConfig, {"init-type": "rezero_postln", "encoder-normalize-before": True}).encoder.is_pre_norm


@pytest.mark.parametrize(("flags", "why"), [
    (["--admin-profile-batches", "2"], "belongs to --init-type admin or adaptive-profiling or adaptive"),
    (["--init-type", "admin", "--admin-profile", "x"], "belongs to --init-type adaptive"),
    (["--init-type", "admin", "--admin-profile-batches", "0"], "must be at least 1"),
    (["--init-type", "adnim"], "must be one of default, "),
    (["--init-type", "deepnet", "--deepnet-layers", "3"], "needs two numbers"),
])
def test_flags_that_make_no_sense(flags, why, capsys):
    assert main(["train", "data", "--max-tokens", "64", *flags]) == 2
    assert why in capsys.readouterr().err


def test_the_depth_a_model_began_with_can_be_written_down():
    config = build(ModelConfig, {"init-type": "deepnet", "encoder-layers": 12})
    noted = config.with_trained_depths()
    assert noted.init == DeepNet(layers=(12, 6))
    assert replace(noted, encoder=replace(noted.encoder, num_layers=3)).with_trained_depths().trained_depths == (12, 6)
    assert build(ModelConfig, {"encoder-layers": 12}).with_trained_depths().trained_depths == (12, 6)
