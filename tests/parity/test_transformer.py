"""Same weights, two implementations: forward and gradients of the references' encoder-decoder Transformers.

A fixture is float32, and its own rounding is of the size of the differences seen: computed here in float64, it is up to 2.8e-6
off in log-probabilities and, where a gradient is a thousand times smaller than its neighbours, 1.3e-5 of its largest entry.
So the model is compared in float64 at those bounds, and in float32 at twice them.
"""

import pytest
import torch

from golden_files import HAS_ALL, compare_norms, compare_with_fixture, read_json, read_model, read_tensors
from lamina.nn.cross_entropy import label_smoothed_loss

FIXTURES = ["transformer_postln", "transformer_preln", "transformer_learned_pos", "transformer_layernorm_embedding",
            "transformer_separate_vocabs", "transformer_shared_all_embeddings",
            "sf_att_hard_gate08", "sf_att_soft_tau", "sf_ffn", "sf_max_hard", "sf_no_ffn_posedemb", "sf_preln",
            "layerwise_attention_preln", "transparent_attention_ta_posedemb", "ta_ffn"]
# Of the same kind, too large to keep them all here; each of their switches is in one of the above.
ELSEWHERE = ["sf_mean_hard", "sf_att_hard_idx0", "sf_att_hard_learned_gate", "sf_att_postnorm", "sf_att_soft", "sf_linear",
             "layerwise_attention", "transparent_attention", "transparent_attention_fine_grained",
             "transparent_attention_preln", "transparent_attention_with_source_embedding"]


@pytest.fixture(params=FIXTURES + (ELSEWHERE if HAS_ALL else []))
def fixture(request):
    return request.param


def smoothing_of(config):
    # Main spreads eps over V - 1 symbols; ours and 0.9 over V. They are one function of a rescaled eps.
    vocab_size = config["tgt_vocab"]
    return config["label_smoothing"] * (vocab_size / (vocab_size - 1) if "main" in config["reference"] else 1.0)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 2.8e-6), (torch.float32, 5.6e-6)])
def test_log_probs(fixture, dtype, atol):
    inputs, expected = read_tensors(fixture, "inputs"), read_tensors(fixture, "expected")
    log_probs = read_model(fixture).eval().to(dtype).log_probs(inputs["src_tokens"], inputs["prev_output_tokens"])
    is_token = inputs["target"].ne(1)
    torch.testing.assert_close(log_probs[is_token], expected["lprobs"][is_token].to(dtype), rtol=0, atol=atol)


def test_gradients(fixture):
    inputs, config, model = read_tensors(fixture, "inputs"), read_json(fixture), read_model(fixture).double().train()
    log_probs = model.log_probs(inputs["src_tokens"], inputs["prev_output_tokens"])[inputs["target"].ne(1)]
    answers = inputs["target"][inputs["target"].ne(1)]
    eps = smoothing_of(config)
    loss = -(1 - eps) * log_probs.gather(1, answers[:, None]).sum() - eps / log_probs.size(1) * log_probs.sum()
    loss.backward()
    compare_with_fixture(model, fixture, share=1.5e-5)


def test_the_chunked_loss(fixture):
    inputs, expected = read_tensors(fixture, "inputs"), read_tensors(fixture, "expected")
    config, model = read_json(fixture), read_model(fixture).train()
    terms = model(inputs["src_tokens"], inputs["prev_output_tokens"])
    sums = label_smoothed_loss(terms, model.output_weight, inputs["target"], smoothing=smoothing_of(config), pad_id=1)
    torch.testing.assert_close(sums.loss, expected["loss_own"], rtol=1e-6, atol=0)
    torch.testing.assert_close(sums.nll, expected["nll_sum"], rtol=1e-6, atol=0)
    own = label_smoothed_loss(terms, model.output_weight, inputs["target"], smoothing=config["label_smoothing"], pad_id=1)
    torch.testing.assert_close(own.loss, expected["loss_fs09"], rtol=1e-6, atol=0)
    sums.loss.backward()
    # float32 on both sides: a query bias whose gradient is a thousandth of its neighbours' is off by 4e-5 of itself.
    compare_norms(model, read_json(fixture, "gradnorm.json"), share=1e-4)
