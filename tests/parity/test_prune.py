"""Pruned as the reference prunes: the same log-probabilities, parameters and numbering."""

import pytest
import torch

from golden_files import read_json, read_model, read_tensors
from lamina.interop.fairseq import model_from_fairseq


def pruned_model(fixture, encoder, decoder, weights=None):
    config = read_json(fixture)
    args = config["args"] | {"encoder_layers_to_keep": encoder, "decoder_layers_to_keep": decoder}
    weights = weights or read_tensors(fixture, "weights")
    return model_from_fairseq(args, weights, config["src_vocab"], config["tgt_vocab"]).eval()


def assert_equal(model, which):
    inputs, expected = read_tensors("prune_enc_dec", "inputs"), read_tensors("prune_enc_dec", "expected")
    is_token = inputs["target"].ne(1)
    log_probs = model.log_probs(inputs["src_tokens"], inputs["prev_output_tokens"])
    torch.testing.assert_close(log_probs[is_token], expected[f"{which}.lprobs"][is_token], rtol=0, atol=2e-6)


def test_full():
    assert_equal(read_model("prune_enc_dec").eval(), "full")


@pytest.mark.parametrize(("encoder", "decoder"), [("0,2,4", "1,3,5"), ("4,0,2", "5,3,1")])
def test_pruned(encoder, decoder):
    model = pruned_model("prune_enc_dec", encoder, decoder)
    assert_equal(model, "pruned")
    assert sum(parameter.numel() for parameter in model.parameters()) == read_json("prune_enc_dec")["n_params_pruned"]


def test_pruning_one_side_leaves_the_other_whole():
    model = pruned_model("prune_enc_dec", "0,2,4", None)
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (3, 6)
    model = pruned_model("prune_enc_dec", None, "3")  # there, a list of one
    assert (len(model.encoder.layers), len(model.decoder.layers)) == (6, 1)
    whole = read_model("prune_enc_dec")
    assert torch.equal(model.decoder.layers[0].ffn.fc1.weight, whole.decoder.layers[3].ffn.fc1.weight)


def test_weights_that_were_pruned_before_are_taken_as_they_are():
    """What the reference saves after training a pruned model on: the list is still in its arguments."""
    kept = {"encoder": {0: 0, 2: 1, 4: 2}, "decoder": {1: 0, 3: 1, 5: 2}}
    weights = {}
    for name, tensor in read_tensors("prune_enc_dec", "weights").items():
        side, *words = name.split(".")
        if words[0] != "layers":
            weights[name] = tensor
        elif int(words[1]) in kept[side]:
            weights[".".join([side, "layers", str(kept[side][int(words[1])]), *words[2:]])] = tensor
    assert_equal(pruned_model("prune_enc_dec", "0,2,4", "1,3,5", weights), "pruned")
