"""The kernels that end a step find what torch finds. On a CPU Triton's interpreter runs them, where Triton is installed."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from interpreted import check_interpreted, needs_interpreter, starts_interpreter
from lamina.config.search_options import SearchConfig
from lamina.decode import beam_step, fused_choice
from lamina.decode.backtrace import Backtrace
from lamina.decode.fused_choice import can_fuse
from lamina.decode.search import Search
from lamina.nn import step_attention
from lamina.text.vocabulary import EOS, PAD
from tiny import VOCABULARY_SIZE, tiny_model

CONFIGURATIONS = {
    "greedy": SearchConfig(beam=1, max_length_offset=5),
    "beam": SearchConfig(beam=4, nbest=4, max_length_offset=5),
    "penalties": SearchConfig(beam=3, nbest=3, length_penalty=0.4, unk_penalty=1.5, min_length=3, max_length_offset=4),
    "as long as its source": SearchConfig(beam=5, nbest=5, match_source_length=True),
    "no repeats": SearchConfig(beam=4, nbest=4, no_repeat_ngram=2, max_length_offset=4),
    "many": SearchConfig(beam=8, nbest=3, max_length_offset=4),
}


def sources(number=4, seed=0):
    generator = np.random.default_rng(seed)
    return [np.append(generator.integers(4, VOCABULARY_SIZE, size), EOS) for size in generator.integers(1, 5, number)]


def found_by(models, config, prefixes=None):
    found = dict(Search(models, config).each(sources(), prefixes, num_slots=2, device=torch.device("cpu")))
    return {key: [(own.ids, own.score, own.token_scores) for own in hypotheses] for key, hypotheses in found.items()}


@starts_interpreter
def test_in_the_interpreter():
    check_interpreted(__file__)


@pytest.fixture
def fused(monkeypatch):
    """As on a GPU; how often the kernels chose."""
    calls, real = [], fused_choice.choose_
    monkeypatch.setattr(beam_step, "can_fuse", lambda slots, log_probs: slots.constraints is None)
    monkeypatch.setattr(beam_step, "choose_", lambda *given: calls.append(given) or real(*given))
    monkeypatch.setattr(fused_choice, "SPANS", {2**31: 8})
    monkeypatch.setattr(fused_choice, "SPANS_OF_PROGRAM", 2)
    return calls


@needs_interpreter
@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
@pytest.mark.parametrize("number", [1, 2])
def test_what_torch_finds(config, number, fused, monkeypatch):
    models = [tiny_model(seed=seed, share_all=False) for seed in range(3, 3 + number)]
    own = found_by(models, config)
    assert fused
    monkeypatch.setattr(beam_step, "can_fuse", lambda *_: False)
    assert found_by(models, config) == own


@needs_interpreter
def test_what_torch_finds_behind_a_prefix(fused, monkeypatch):
    config, models = CONFIGURATIONS["beam"], [tiny_model(seed=3, share_all=False)]
    prefixes = [source[: number % 3] for number, source in enumerate(sources(seed=1))]
    own = found_by(models, config, prefixes)
    monkeypatch.setattr(beam_step, "can_fuse", lambda *_: False)
    assert found_by(models, config, prefixes) == own


@needs_interpreter
@pytest.mark.parametrize("beam", [1, 4])
def test_of_equal_continuations_the_first(beam, monkeypatch):
    monkeypatch.setattr(fused_choice, "SPANS", {2**31: 8})
    torch.manual_seed(0)
    batch, vocab = 5, 37
    log_probs = torch.randint(-3, 0, (batch, beam, vocab)).float()
    slots = SimpleNamespace(
        tokens=torch.zeros(batch, beam, dtype=torch.long), scores=torch.randint(-2, 0, (batch, beam)).float(),
        rules=SimpleNamespace(limits=torch.full((batch,), 9), num_given=torch.zeros(batch, dtype=torch.long)),
        num_ended=torch.zeros(batch, dtype=torch.long), is_done=torch.zeros(batch, dtype=torch.bool),
        trace=Backtrace(9, batch, beam, torch.device("cpu")),
        states=[SimpleNamespace(ancestry=torch.zeros(batch, beam, 16, dtype=torch.int16), capacity=16, length=8)])
    allowed = log_probs.clone()
    allowed[:, :, PAD] = -torch.inf
    allowed[:, :, EOS] = -torch.inf
    totals = (allowed + slots.scores[:, :, None]).flatten(1)
    expected, places = (part[:, :beam] for part in totals.sort(dim=1, descending=True, stable=True))
    found = fused_choice.choose_(slots, log_probs, torch.full((batch,), 3), min_length=4)
    assert torch.equal(found.scores, expected)
    assert torch.equal(found.tokens, places % vocab)
    assert torch.equal(found.parents, places // vocab)


@needs_interpreter
def test_a_model_that_computes_nan_loses_its_sentences(fused):
    model = tiny_model(seed=3, share_all=False)
    with torch.no_grad():
        model.decoder.layers[0].ffn.fc1.weight.fill_(torch.nan)
    assert {tuple(own[0][0]) for own in found_by([model], CONFIGURATIONS["beam"]).values()} == {(EOS,)}


@torch.inference_mode()
def test_searches_that_choose_otherwise_are_torchs(monkeypatch):
    """And so is a CPU's."""
    model, config = tiny_model(), CONFIGURATIONS["beam"]
    log_probs = torch.zeros(2, 4, VOCABULARY_SIZE)

    class Slots:
        def __init__(self, config, constraints=None):
            self.search, self.config, self.constraints = Search([model], config), config, constraints

    class OnGpu:
        is_cuda, dtype = True, torch.float32

        def size(self, dim):
            return log_probs.size(dim)

    monkeypatch.setattr(step_attention, "HAS_TRITON", True)
    assert not can_fuse(Slots(config), OnGpu())
    monkeypatch.setenv(step_attention.SWITCH, "1")
    assert can_fuse(Slots(config), OnGpu())
    assert not can_fuse(Slots(config), log_probs)
    assert not can_fuse(Slots(config, constraints=object()), OnGpu())
    assert not can_fuse(Slots(replace(config, diverse_beam_groups=2)), OnGpu())
    assert not can_fuse(Slots(SearchConfig(beam=2, sampling=True)), OnGpu())
    assert not can_fuse(Slots(SearchConfig(beam=VOCABULARY_SIZE)), OnGpu())
