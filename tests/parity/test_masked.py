"""Same weights, two implementations: forward, loss and gradients of the reference's RoBERTa."""

import pytest
import torch

from golden_files import compare_with_fixture, read_json, read_tensors
from lamina.errors import CheckpointError
from lamina.interop.fairseq import model_from_fairseq
from lamina.nn.cross_entropy import label_smoothed_loss
from lamina.nn.stack import ActiveLayers

FIXTURE = "roberta_tiny"


def read_masked(args=(), weights=()):
    config = read_json(FIXTURE)
    return model_from_fairseq({**config["args"], **dict(args)}, {**read_tensors(FIXTURE, "weights"), **dict(weights)},
                              config["vocab"], config["vocab"])


def test_features_and_logits():
    tokens, expected = read_tensors(FIXTURE, "inputs")["src_tokens"], read_tensors(FIXTURE, "expected")
    model, is_token = read_masked().eval(), tokens.ne(1)
    torch.testing.assert_close(model.encode(tokens).final[is_token], expected["features"][is_token], rtol=0, atol=2e-6)
    log_probs, theirs = (scores.log_softmax(dim=-1)[is_token] for scores in (model.logits(tokens), expected["logits"]))
    torch.testing.assert_close(log_probs, theirs, rtol=0, atol=2e-6)


def test_loss_and_gradients_at_the_masked_places_alone():
    inputs, expected = read_tensors(FIXTURE, "inputs"), read_tensors(FIXTURE, "expected")
    model = read_masked().train()
    places = inputs["target"].ne(1).flatten().nonzero()[:, 0]
    terms = model(inputs["src_tokens"], places)
    scores = terms[0].features[0] @ model.output_weight.t() + model.head.output_bias
    torch.testing.assert_close(scores.log_softmax(-1), expected["masked_logits"].log_softmax(-1), rtol=0, atol=2e-6)
    answers = inputs["target"].flatten()[places]
    sums = label_smoothed_loss(terms, model.output_weight, answers, smoothing=0.0, pad_id=1, output_bias=model.head.output_bias)
    torch.testing.assert_close(sums.loss, expected["masked_lm_loss_sum"], rtol=1e-6, atol=0)
    sums.loss.backward()
    compare_with_fixture(model, FIXTURE)


def test_a_sentence_head_comes_along():
    torch.manual_seed(0)
    shapes = {"dense.weight": (32, 32), "dense.bias": (32,), "out_proj.weight": (3, 32), "out_proj.bias": (3,)}
    head = {f"classification_heads.mnli.{name}": torch.randn(shape) for name, shape in shapes.items()}
    dense, dense_bias, out, out_bias = head.values()
    tokens = read_tensors(FIXTURE, "inputs")["src_tokens"]
    scores = read_masked(weights=head).eval().classify(tokens, "mnli")
    first = read_tensors(FIXTURE, "expected")["features"][:, 0]
    torch.testing.assert_close(scores, torch.tanh(first @ dense.t() + dense_bias) @ out.t() + out_bias, rtol=1e-5, atol=1e-5)
    two = head | {name.replace("mnli", "sst"): tensor for name, tensor in head.items()}
    with pytest.raises(CheckpointError, match="2 sentence heads"):
        read_masked(weights=two)


def test_names_of_version_0_9():
    """There the model calls its encoder `decoder`, and the norm of the embeddings `emb_layer_norm`."""
    config = read_json(FIXTURE)
    old = {name.replace("encoder.", "decoder.", 1).replace("layernorm_embedding", "emb_layer_norm"): tensor
           for name, tensor in read_tensors(FIXTURE, "weights").items()}
    args = {name: value for name, value in config["args"].items()
            if name not in ("encoder_learned_pos", "layernorm_embedding", "no_scale_embedding", "untie_weights_roberta")}
    model = model_from_fairseq({**args, "encoder_normalize_before": True}, old, 64, 64).eval()
    tokens = read_tensors(FIXTURE, "inputs")["src_tokens"]
    assert torch.equal(model.logits(tokens), read_masked().eval().logits(tokens))
    pruned = model_from_fairseq({**args, "decoder_layers_to_keep": "0,2"}, old, 64, 64).eval()
    assert torch.equal(pruned.logits(tokens), read_masked(args={"encoder_layers_to_keep": "0,2"}).eval().logits(tokens))
    skipped = model.encode(tokens, ActiveLayers(encoder=(True, False, True))).final
    assert torch.equal(pruned.encode(tokens).final, skipped)


def test_an_output_matrix_of_its_own():
    """With the input's numbers it gives the reference's scores, with others its own; each learns for itself."""
    tokens, expected = read_tensors(FIXTURE, "inputs")["src_tokens"], read_tensors(FIXTURE, "expected")
    table = read_tensors(FIXTURE, "weights")["encoder.sentence_encoder.embed_tokens.weight"]
    untied = {"untie_weights_roberta": True}
    same, other = (read_masked(untied, {"encoder.lm_head.weight": weight}).eval() for weight in (table.clone(), table.flip(0)))
    is_token = tokens.ne(1)
    torch.testing.assert_close(same.logits(tokens)[is_token], expected["logits"][is_token], rtol=1e-5, atol=1e-5)
    scores = other.head(other.encode(tokens).final) @ table.flip(0).t() + other.head.output_bias
    torch.testing.assert_close(other.logits(tokens), scores)
    same.logits(tokens).logsumexp(-1).sum().backward()
    assert same.head.table.weight.grad[1].abs().sum() > 0  # padding is a word like the others here
    assert not torch.equal(same.head.table.weight.grad, same.source_embedding.table.weight.grad)
    with pytest.raises(CheckpointError, match="lacks the parameters behind head"):
        read_masked(untied)
