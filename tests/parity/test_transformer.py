"""Same weights, two implementations: forward and gradients of the references' plain Transformers."""

import pytest
import torch

from golden_files import compare_gradients, read_json, read_model, read_tensors
from lamina.train.loss import label_smoothed_loss

FIXTURES = ["transformer_postln", "transformer_preln", "transformer_learned_pos", "transformer_layernorm_embedding",
            "transformer_separate_vocabs", "transformer_shared_all_embeddings"]


@pytest.mark.parametrize("fixture", FIXTURES)
def test_log_probs(fixture):
    inputs, expected = read_tensors(fixture, "inputs"), read_tensors(fixture, "expected")
    log_probs = read_model(fixture).eval().log_probs(inputs["src_tokens"], inputs["prev_output_tokens"])
    is_token = inputs["target"].ne(1)
    torch.testing.assert_close(log_probs[is_token], expected["lprobs"][is_token], rtol=0, atol=2e-6)


@pytest.mark.parametrize("fixture", FIXTURES)
def test_loss_and_gradients(fixture):
    inputs, expected = read_tensors(fixture, "inputs"), read_tensors(fixture, "expected")
    config, model = read_json(fixture), read_model(fixture).train()
    # The reference spreads eps over V - 1 symbols; ours over V. They are one function of a rescaled eps.
    vocab_size = config["tgt_vocab"]
    smoothing = config["label_smoothing"] * vocab_size / (vocab_size - 1)
    terms = model(inputs["src_tokens"], inputs["prev_output_tokens"])
    sums = label_smoothed_loss(terms, model.output_weight, inputs["target"], smoothing=smoothing, pad_id=1)
    torch.testing.assert_close(sums.loss, expected["loss_own"], rtol=1e-6, atol=0)
    torch.testing.assert_close(sums.nll, expected["nll_sum"], rtol=1e-6, atol=0)
    own = label_smoothed_loss(terms, model.output_weight, inputs["target"], smoothing=config["label_smoothing"], pad_id=1)
    torch.testing.assert_close(own.loss, expected["loss_fs09"], rtol=1e-6, atol=0)
    sums.loss.backward()
    compare_gradients(model, read_tensors(fixture, "grads"))
