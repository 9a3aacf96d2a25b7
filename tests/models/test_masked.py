"""The encoder-only model: names, counts, and what may change its scores."""

import pytest
import torch

from lamina.config.presets import roberta_base, roberta_large
from lamina.models.build import build_masked_model
from lamina.nn.stack import ActiveLayers
from lamina.registry import register
from tiny import VOCABULARY_SIZE, pad, tiny_masked_model, tiny_pair


def test_parameter_names_are_a_file_format():
    names = [name for name, _ in tiny_masked_model(num_layers=1, num_classes=3).named_parameters()]
    assert [name for name in names if not name.startswith("encoder.layers")] == [
        "source_embedding.table.weight", "source_embedding.positions.weight", "source_embedding.norm.weight",
        "source_embedding.norm.bias", "head.bias", "head.dense.weight", "head.dense.bias", "head.norm.weight", "head.norm.bias",
        "classifiers.sentence_classification_head.dense.weight", "classifiers.sentence_classification_head.dense.bias",
        "classifiers.sentence_classification_head.out_proj.weight", "classifiers.sentence_classification_head.out_proj.bias"]
    assert "encoder.layers.0.attn_residual.norm.weight" in names


@pytest.mark.parametrize(("preset", "expected"), [(roberta_base, 124_696_665), (roberta_large, 355_411_033)])
def test_number_of_parameters(preset, expected):
    """Counted from the published sizes, with RoBERTa's 50,265 symbols (50,260 pieces, 4 special ones and <mask>) and 514
    rows of positions: V*D + 514*D + 2D embeddings; 4D^2 + 4D + 2DF + D + F + 4D a layer; D^2 + D + 2D + V the head. The
    paper says 125 and 355 million; a port with a row of segment embeddings, which RoBERTa does not use, has D more."""
    config, vocab = preset(), 50_265
    layers, dim, ffn = config.encoder.num_layers, config.encoder.model_dim, config.encoder.ffn_dim
    layer = 4 * dim**2 + 4 * dim + 2 * dim * ffn + dim + ffn + 4 * dim
    assert expected == (vocab + 514 + 2) * dim + layers * layer + dim**2 + 3 * dim + vocab
    with torch.device("meta"):
        model = build_masked_model(config, vocab)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    assert model.logits(torch.ones(1, 3, dtype=torch.long, device="meta")).shape == (1, 3, vocab)


@pytest.mark.parametrize("arch", register.arch.of_task("masked_lm"))
def test_every_preset_builds_and_runs(arch):
    assert arch in register.arch.of_task("sentence_prediction")
    with torch.device("meta"):
        model = build_masked_model(register.arch[arch](), 12)
    assert model.logits(torch.ones(1, 2, dtype=torch.long, device="meta")).shape == (1, 2, 12)


def test_padding_changes_nothing():
    model, (tokens, _) = tiny_masked_model(num_classes=3), tiny_pair()
    padded = pad(tokens, right=4)
    torch.testing.assert_close(model.logits(padded)[:, : tokens.size(1)], model.logits(tokens), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model.classify(padded, "sentence_classification_head"),
                               model.classify(tokens, "sentence_classification_head"), rtol=1e-5, atol=1e-5)


def test_both_sides_of_a_gap_count():
    model, (tokens, _) = tiny_masked_model(), tiny_pair()
    for place in (0, -1):
        changed = tokens.clone()
        changed[:, place] = 5
        assert not torch.allclose(model.logits(changed)[:, 3], model.logits(tokens)[:, 3])


def test_terms_at_places_are_the_logits_there():
    model, (tokens, _) = tiny_masked_model(), tiny_pair()
    places = torch.tensor([1, 4, 9])
    (term,) = model(tokens, places)
    scores = term.features[0] @ model.output_weight.t() + model.output_bias
    torch.testing.assert_close(scores, model.logits(tokens).flatten(0, 1)[places], rtol=1e-5, atol=1e-5)


def test_a_skipped_layer_is_not_there():
    model, (tokens, _) = tiny_masked_model(num_layers=3), tiny_pair()
    skipped = model.encode(tokens, active=ActiveLayers(encoder=[True, False, True])).final
    del model.encoder.layers[1]
    assert torch.equal(model.encode(tokens).final, skipped)


def test_input_and_output_share_one_table():
    model = tiny_masked_model()
    assert model.output_weight is model.source_embedding.table.weight
    assert model.output_weight.shape == (VOCABULARY_SIZE, 16)
