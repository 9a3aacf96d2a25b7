"""Pruned as the reference prunes: the same log-probabilities, parameters and numbering."""

from dataclasses import replace

import pytest
import torch

from golden_files import read_json, read_model, read_tensors
from lamina.interop.fairseq import model_from_fairseq
from lamina.models.build import BUILDERS
from lamina.pruning.cut import Keep, prune
from lamina.registry import register


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


EVERY_OTHER = tuple(range(0, 16, 2))
HALF = Keep((0, 2, 4), (0, 2, 4))
COUNTS = [
    ("transformer_wmt_en_de vocab32768 shared", "transformer_wmt_en_de", 32768, HALF, "keep 0,2,4"),
    ("transformer_wmt_en_de_big vocab32768 shared", "transformer_wmt_en_de_big", 32768, HALF, "keep 0,2,4"),
    ("transformer_iwslt_de_en vocab10152 shared", "transformer_iwslt_de_en", 10152, HALF, "keep 0,2,4"),
    ("roberta_base vocab50265", "roberta_base", 50265, Keep(EVERY_OTHER[:6], None), "keep 6 of 12"),
    ("transformer_lm_wiki103 vocab267744", "transformer_lm_wiki103", 267744, Keep(None, EVERY_OTHER), "keep 8 of 16"),
]


@pytest.mark.parametrize(("name", "arch", "vocab_size", "keep", "what"), COUNTS, ids=[row[0] for row in COUNTS])
def test_number_of_parameters(name, arch, vocab_size, keep, what):
    """246,933,504 and 146,163,712 for the language model of WikiText-103, whole and at half its depth."""
    counts, config = read_json("param_counts", "param_counts.json"), register.arch[arch]()
    if name.endswith(" shared"):
        config = replace(config, embedding=replace(config.embedding, share_all=True))
    task = next(task for task, presets in TASK_PRESETS.items() if register.arch[arch] in presets or arch in presets)
    sizes = (vocab_size, vocab_size) if task == "translation" else (vocab_size,)

    def build(config):
        return BUILDERS[task](config, sizes)

    with torch.device("meta"):
        whole = build(config)
        small, weights = prune(config, dict(whole.named_parameters()), keep)
        built = build(small)
    full = f"{name} 16 layers" if "wiki103" in name else name
    assert sum(weight.numel() for weight in whole.parameters()) == counts[full]["total"]
    assert sum(weight.numel() for weight in weights.values()) == counts[f"{name} {what}"]["total"]
    assert {name: weight.shape for name, weight in built.named_parameters()} == {
        name: weight.shape for name, weight in weights.items()}
