"""Same weights, two implementations: fairseq's decoder-only Transformers, with plain and adaptive vocabularies."""

import pytest
import torch

from fairseq_files import write_fixture_file
from golden_files import compare_with_fixture, place_of, read_json, read_model, read_tensors
from lamina.cli import main
from lamina.config.presets import transformer_lm_wiki103
from lamina.data.batching import TokenBatch
from lamina.errors import CheckpointError
from lamina.interop.fairseq import language_model_config
from lamina.models.build import build_decoder_only
from lamina.parts.criteria import CrossEntropy
from lamina.training.loss import batch_loss

# Of these two, the reference's own loss leaves out a term wherever a target is the second word of a band; ours never does.
QUIRKY = ["transformer_lm_adaptive", "transformer_lm_adaptive_tieweights_only", "transformer_lm_adaptive_untied_dims"]
EXACT = ["transformer_lm", "transformer_lm_adaptive_noquirk"]


def batch_of(fixture):
    inputs = read_tensors(fixture, "inputs")
    return TokenBatch(inputs["src_tokens"], inputs["target"], int(inputs["target"].ne(1).sum()), (0, 1, 2, 3))


@pytest.mark.parametrize("fixture", EXACT + QUIRKY)
def test_log_probs(fixture):
    batch, expected = batch_of(fixture), read_tensors(fixture, "expected")
    is_token = batch.target.ne(1)
    log_probs = read_model(fixture).eval().log_probs(batch.tokens)
    assert log_probs.shape == expected["lprobs"].shape
    # Without a final norm log-probabilities go down to -75, where float32 has no step below 7e-6.
    rtol = 0 if fixture == "transformer_lm" else 1e-6
    torch.testing.assert_close(log_probs[is_token], expected["lprobs"][is_token], rtol=rtol, atol=2e-6)


@pytest.mark.parametrize("fixture", EXACT + QUIRKY)
def test_loss_is_the_exact_negative_log_likelihood(fixture):
    batch, expected = batch_of(fixture), read_tensors(fixture, "expected")
    sums = batch_loss(read_model(fixture).eval(), batch, CrossEntropy())
    exact = -expected["target_lprobs"][batch.target.ne(1)].sum()
    torch.testing.assert_close(sums.nll, exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(sums.loss, exact, rtol=1e-6, atol=0)


@pytest.mark.parametrize("fixture", EXACT)
def test_gradients(fixture):
    model = read_model(fixture).train()
    sums = batch_loss(model, batch_of(fixture), CrossEntropy())
    sums.loss.backward()
    compare_with_fixture(model, fixture)


def test_the_reference_leaves_out_what_we_count():
    batch, expected = batch_of("transformer_lm_adaptive"), read_tensors("transformer_lm_adaptive", "expected")
    ours = batch_loss(read_model("transformer_lm_adaptive").eval(), batch, CrossEntropy()).loss
    is_lost = torch.isin(batch.target, torch.tensor([21, 41]))
    assert is_lost.any()
    assert ours > expected["adaptive_loss_own"] + 1


@pytest.mark.parametrize("keep", [None, "0,2,4"])
def test_pruned(keep):
    config, inputs = read_json("prune_lm"), read_tensors("prune_lm", "inputs")
    expected, name = read_tensors("prune_lm", "expected"), "full" if keep is None else "pruned"
    model = read_model("prune_lm", decoder_layers_to_keep=keep)
    assert sum(parameter.numel() for parameter in model.parameters()) == config[f"n_params_{name}"]
    is_token = inputs["target"].ne(1)
    torch.testing.assert_close(model.eval().log_probs(inputs["src_tokens"])[is_token],
                               expected[f"{name}.lprobs"][is_token], rtol=0, atol=2e-6)


@pytest.mark.parametrize(("num_layers", "count"), [(16, 246_933_504), (8, 146_163_712)])
def test_number_of_parameters(num_layers, count):
    from dataclasses import replace

    config = transformer_lm_wiki103()
    with torch.device("meta"):
        model = build_decoder_only(replace(config, decoder=replace(config.decoder, num_layers=num_layers)), 267_744)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


@pytest.mark.parametrize(("kept", "count"), [("all", 136_576), ("0,2", 119_488)])
def test_eval_lm_prints_what_the_reference_printed(tmp_path, capsys, kept, count):
    """From a file in fairseq's own layout; the one it wrote itself is tried in test_checkpoints.py."""
    path = write_fixture_file(tmp_path, "fairseq_main_lm_layerdrop")
    overrides = [] if kept == "all" else ["--model-overrides", f"{{'decoder_layers_to_keep':'{kept}'}}"]
    assert main(["eval-lm", str(place_of("fairseq_main_lm_layerdrop")), "--path", str(path), "--gen-subset", "valid",
                 "--tokens-per-sample", "32", *overrides]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ("| Pruning model to specified layer configuration" in lines) == (kept != "all")
    assert f"num. model params: {count}" in lines
    assert lines[-1] == read_json("fairseq_main_lm_layerdrop")["expected"][kept]


def test_arguments_of_old_checkpoints():
    """Before there was --no-decoder-final-norm, language models had no final norm and another name for tying."""
    args = {"decoder_embed_dim": 32, "decoder_attention_heads": 4, "adaptive_input": True, "adaptive_input_cutoff": "20,40",
            "adaptive_softmax_cutoff": "20,40", "tie_adaptive_weights": True, "tokens_per_sample": 64}
    old = language_model_config({**args, "no_tie_adaptive_proj": False})
    assert not old.lm.has_final_norm
    assert old.lm.ties_projections
    assert old.decoder.is_pre_norm
    assert old.embedding.max_target_positions == 64
    assert language_model_config(args).lm.has_final_norm


def test_what_cannot_be_built_is_refused_by_name():
    with pytest.raises(CheckpointError, match="character_embeddings=True"):
        language_model_config({"character_embeddings": True})
