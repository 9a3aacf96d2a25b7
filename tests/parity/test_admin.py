"""Same weights, two implementations: the residual variants of the Admin authors' code, and its profile."""

import pytest
import torch

from golden_files import HAS_ALL, compare_with_fixture, read_json, read_model, read_tensors
from lamina.init.admin import profile_omegas_
from lamina.init.deepnet import DeepNetConstants
from lamina.interop.fairseq import places
from lamina.nn.cross_entropy import label_smoothed_loss

FIXTURES = ["admin_adaptive", "rezero", "rezero_postln", "deepnet",
            *(["admin_default_postln", "rezero_preln"] if HAS_ALL else [])]


@pytest.mark.parametrize("fixture", FIXTURES)
def test_log_probs(fixture):
    inputs, expected = read_tensors(fixture, "inputs"), read_tensors(fixture, "expected")
    log_probs = read_model(fixture).eval().log_probs(inputs["src_tokens"], inputs["prev_output_tokens"])
    is_token = inputs["target"].ne(1)
    # Without any LayerNorm, log-probabilities reach -50: there the error is a share of the largest.
    atol = 1e-6 * expected["lprobs"].abs().max().item() if fixture == "rezero" else 2e-6
    torch.testing.assert_close(log_probs[is_token], expected["lprobs"][is_token], rtol=0, atol=atol)


@pytest.mark.parametrize("fixture", FIXTURES)
def test_loss_and_gradients(fixture):
    inputs, expected = read_tensors(fixture, "inputs"), read_tensors(fixture, "expected")
    model = read_model(fixture).train()
    terms = model(inputs["src_tokens"], inputs["prev_output_tokens"])
    sums = label_smoothed_loss(terms, model.output_weight, inputs["target"], pad_id=1,
                               smoothing=read_json(fixture)["label_smoothing"])
    torch.testing.assert_close(sums.loss, expected["loss_own"], rtol=1e-6, atol=0)
    torch.testing.assert_close(sums.nll, expected["nll_sum"], rtol=1e-6, atol=0)
    sums.loss.backward()
    # Measured in float64: of rezero's gradients the reference's own are up to 1.06e-5 off, ours 4.2e-6.
    compare_with_fixture(model, fixture, share=1.5e-5 if fixture == "rezero" else 1e-5)


def test_profile():
    inputs, expected = read_tensors("admin_profiling", "inputs"), read_tensors("admin_profiling", "expected")
    model = read_model("admin_profiling").train()

    def forward():
        return model(inputs["src_tokens"], inputs["prev_output_tokens"])

    profile = profile_omegas_(model, [forward], counts_pads=True)
    wanted = read_json("admin_profiling", "profile.json")
    for side in ("encoder", "decoder"):
        assert profile[side] == pytest.approx([ratio for _, ratio in wanted[side]], rel=3e-7)
    ours = dict(model.named_parameters())
    for name, omega in expected.items():
        if name.startswith("ratio_after."):
            (place,) = places(name.removeprefix("ratio_after."))
            torch.testing.assert_close(ours[place.name].detach(), omega, rtol=3e-7, atol=0)
    is_token = inputs["target"].ne(1)
    log_probs = model.eval().log_probs(inputs["src_tokens"], inputs["prev_output_tokens"])
    torch.testing.assert_close(log_probs[is_token], expected["lprobs"][is_token], rtol=0, atol=2e-6)


def test_deepnet_constants():
    wanted = read_json("deepnet", "constants.json")
    encoder, decoder = DeepNetConstants.of_encoder(3, 3), DeepNetConstants.of_decoder(3)
    assert encoder == pytest.approx((wanted["encoder_alpha"], wanted["encoder_beta"]), rel=1e-12)
    assert decoder == pytest.approx((wanted["decoder_alpha"], wanted["decoder_beta"]), rel=1e-12)
