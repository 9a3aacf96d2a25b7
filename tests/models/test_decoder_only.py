"""Laws that hold for every language model that build_decoder_only builds."""

import pytest
import torch

from lamina.checkpoint.format import load_weights_
from lamina.config.model import LanguageModelConfig
from lamina.config.search_options import SearchConfig
from lamina.decode.beam_step import BeamStep
from lamina.decode.requests import Sentences
from lamina.decode.search import Search
from lamina.errors import ConfigError
from lamina.models.build import build_decoder_only
from lamina.nn.stack import ActiveLayers
from lamina.parts.position_kinds import Learned
from lamina.pruning.cut import Keep, prune
from lamina.text.vocabulary import EOS
from tiny import VOCABULARY_SIZE, pad, tiny_language_model, tiny_lm_config, tiny_pair

BANDS = {"softmax_cutoff": (10, 20), "softmax_factor": 2.0}
INPUT = {"is_adaptive": True, "input_cutoff": (10, 20), "input_factor": 2.0}
CONFIGURATIONS = {
    "pre": {},
    "post": {"is_pre_norm": False},
    "tied": {"share_decoder": True},
    "learned positions": {"positions": Learned()},
    "no positions": {"has_positions": False},
    "no final norm": {"lm": LanguageModelConfig(has_final_norm=False)},
    "other widths": {"lm": LanguageModelConfig(input_dim=12, output_dim=8)},
    "adaptive softmax": {"lm": LanguageModelConfig(**BANDS)},
    "adaptive input": {"lm": LanguageModelConfig(**INPUT)},
    "both": {"lm": LanguageModelConfig(**BANDS, **INPUT, input_dim=12, output_dim=8)},
    "both tied": {"lm": LanguageModelConfig(**BANDS, **INPUT, ties_weights=True, ties_projections=True)},
    "words tied": {"lm": LanguageModelConfig(**BANDS, **INPUT, ties_weights=True)},
}


@pytest.fixture(params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def model(request):
    return tiny_language_model(**request.param)


def tokens():
    return tiny_pair(target_length=8)[1]


def test_future_tokens_cannot_change_past_scores(model):
    changed = tokens().clone()
    changed[:, 4:] = 5
    before, after = model.log_probs(tokens()), model.log_probs(changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=0)
    assert not torch.equal(before[:, 4:], after[:, 4:])


def test_padding_cannot_change_scores(model):
    padded = model.log_probs(pad(tokens(), right=3))[:, :8]
    torch.testing.assert_close(padded, model.log_probs(tokens()), rtol=1e-5, atol=1e-5)


def test_log_probs_are_normalised(model):
    log_probs = model.log_probs(tokens())
    assert log_probs.shape == (3, 8, VOCABULARY_SIZE)
    torch.testing.assert_close(log_probs.exp().sum(dim=-1), torch.ones(3, 8), rtol=1e-5, atol=0)


def test_stepwise_generation_matches_full_forward(model):
    state = model.start(tokens(), 8)
    steps = [model.step(tokens()[:, place], state) for place in range(8)]
    torch.testing.assert_close(torch.stack(steps, dim=1), model.log_probs(tokens()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("active", [(True, False), (False, True)])
def test_skipped_layers_are_skipped_in_every_path(model, active):
    chosen = ActiveLayers(decoder=active)
    whole = model.log_probs(tokens(), active=chosen)
    assert not torch.allclose(whole, model.log_probs(tokens()))
    state = model.start(tokens(), 8, active=chosen)
    steps = [model.step(tokens()[:, place], state) for place in range(8)]
    torch.testing.assert_close(torch.stack(steps, dim=1), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kept", [(0,), (1,)])
def test_pruning_is_skipping(kept):
    for options in CONFIGURATIONS.values():
        config, model = tiny_lm_config(**options), tiny_language_model(**options)
        pruned_config, weights = prune(config, dict(model.named_parameters()), Keep(decoder=kept))
        pruned = build_decoder_only(pruned_config, VOCABULARY_SIZE).eval()
        load_weights_(pruned, weights)
        active = ActiveLayers(decoder=tuple(layer in kept for layer in range(2)))
        torch.testing.assert_close(pruned.log_probs(tokens()), model.log_probs(tokens(), active=active), rtol=0, atol=1e-6)


def test_greedy_continues_a_prompt_with_the_best_token(model):
    prompt = tokens()[:, 1:4]
    found = Search([model], SearchConfig(beam=1, max_length_offset=5)).run(pad(prompt, right=1), prompt)
    for row, (best, *_) in zip(prompt, found, strict=True):
        assert best.ids[:3] == row.tolist()
        assert 5 <= len(best.ids) <= 9
        scores = model.log_probs(torch.tensor([[EOS, *best.ids[:-1]]]))[0]
        picked = scores.gather(1, torch.tensor(best.ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(best.token_scores), picked, rtol=1e-4, atol=1e-4)
        scores[:, 1] = -torch.inf
        scores[3, 2] = -torch.inf
        assert scores.argmax(dim=1).tolist()[3:8] == best.ids[3:8]


SEARCHES = {
    "beam": {"beam": 3, "nbest": 3},
    "sampling": {"beam": 2, "nbest": 2, "sampling": True, "temperature": 0.7},
    "no repetition": {"beam": 2, "no_repeat_ngram": 2, "unk_penalty": 1.0},
}


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES.keys())
def test_reading_a_prompt_at_once_is_reading_it_step_by_step(model, options, monkeypatch):
    prompt = tokens()[:, 1:6].clone()
    prompt[0, 2] = 3
    prompt[1, 3:] = 1  # a shorter one
    search = Search([model, model], SearchConfig(max_length_offset=6, **options))
    at_once = search.run(pad(prompt, right=1), prompt)
    monkeypatch.setattr(BeamStep, "_read_prompts", None)  # would fail if it were called
    steps = search_without_reading(search, prompt, monkeypatch)
    for one, other in zip(at_once, steps, strict=True):
        assert [hypothesis.ids for hypothesis in one] == [hypothesis.ids for hypothesis in other]
        for own, theirs in zip(one, other, strict=True):
            torch.testing.assert_close(torch.tensor(own.token_scores), torch.tensor(theirs.token_scores), rtol=1e-4, atol=1e-4)


def search_without_reading(search, prompt, monkeypatch):
    original = Sentences.__init__

    def without(self, *given, **named):
        original(self, *given, **named)
        self.may_read = False

    monkeypatch.setattr(Sentences, "__init__", without)
    return search.run(pad(prompt, right=1), prompt)


def test_temperature_sharpens_the_whole_distribution():
    model = tiny_language_model(lm=LanguageModelConfig(**BANDS))
    state = model.start(tokens(), 8)
    sharp = model.step(tokens()[:, 0], state, temperature=0.5)
    expected = (model.log_probs(tokens()[:, :1])[:, 0] / 0.5).log_softmax(dim=-1)
    torch.testing.assert_close(sharp, expected, rtol=1e-5, atol=1e-5)


def test_parameter_names_are_a_file_format():
    model = tiny_language_model(num_layers=1, lm=LanguageModelConfig(**BANDS, **INPUT, input_dim=12, output_dim=8))
    names = [name for name, _ in model.named_parameters() if ".layers." not in name]
    bands = [f"target_embedding.table.bands.{band}.{part}.weight" for band in range(3) for part in ("table", "project")]
    tails = [f"head.tails.{tail}.{part}.weight" for tail in range(2) for part in ("table", "project")]
    assert names == [*bands, "decoder.norm.weight", "decoder.norm.bias", "head.project.weight", "head.table.weight",
                     "head.clusters.weight", *tails]
    tied = tiny_language_model(lm=LanguageModelConfig(**BANDS, **INPUT, ties_weights=True, ties_projections=True))
    assert [name for name, _ in tied.named_parameters() if name.startswith("head.")] == ["head.clusters.weight"]
    plain = [name for name, _ in tiny_language_model(lm=LanguageModelConfig(input_dim=12)).named_parameters()]
    assert plain[:2] == ["target_embedding.table.weight", "target_embedding.project.weight"]


@pytest.mark.parametrize(("options", "message"), [
    ({"softmax_cutoff": (20, 10)}, "the ids must rise"),
    ({"is_adaptive": True}, "--adaptive-input needs --adaptive-input-cutoff"),
    ({**BANDS, **INPUT, "input_factor": 4.0, "ties_weights": True}, "the cutoff and the factor of the adaptive softmax"),
    ({**BANDS, **INPUT, "output_dim": 8, "ties_weights": True}, "needs one width"),
    ({"softmax_cutoff": (100,)}, "the dictionary has 40 symbols"),
    ({"softmax_cutoff": (10, 20), "softmax_factor": 16.0}, "no width left"),
])
def test_impossible_bands(options, message):
    with pytest.raises(ConfigError, match=message):
        tiny_language_model(lm=LanguageModelConfig(**options))


def test_adaptive_vocabularies_share_by_their_own_option():
    with pytest.raises(ConfigError, match="use --tie-adaptive-weights"):
        tiny_language_model(lm=LanguageModelConfig(**BANDS), share_decoder=True)
    with pytest.raises(ConfigError, match="no single matrix to share"):
        tiny_language_model(lm=LanguageModelConfig(**INPUT), share_decoder=True)


def test_a_cutoff_at_the_end_of_the_dictionary_adds_no_band():
    model = tiny_language_model(lm=LanguageModelConfig(softmax_cutoff=(10, VOCABULARY_SIZE), softmax_factor=2.0))
    assert len(model.head.tails) == 1

