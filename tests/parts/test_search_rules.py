"""Step rules: those that Lamina has, words that are forbidden, and one that nobody has heard of."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch

from lamina import registry
from lamina.config.search_options import SearchConfig
from lamina.decode.search import Search
from lamina.errors import ConfigError, DataError
from lamina.fields import build, flag, flatten
from lamina.parts import RuleInForce, StepRule
from lamina.registry import register
from lamina.text.vocabulary import EOS, FIRST_WORD_ID, Vocabulary
from tiny import VOCABULARY_SIZE, tiny_language_model, tiny_model

CPU = torch.device("cpu")
WORDS = Vocabulary([f"w{number}" for number in range(VOCABULARY_SIZE - FIRST_WORD_ID)],
                   range(VOCABULARY_SIZE - FIRST_WORD_ID))
SEARCHES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "nbest": 4},
    "diverse": {"beam": 4, "nbest": 4, "diverse_beam_groups": 2},
    "topp": {"beam": 3, "nbest": 3, "sampling": True, "sampling_topp": 0.7},
}


@pytest.fixture(scope="module")
def model():
    return tiny_model(seed=3, share_all=False)


def sources(number=9, seed=0):
    generator = np.random.default_rng(seed)
    return [np.append(generator.integers(4, VOCABULARY_SIZE, size), EOS) for size in generator.integers(1, 10, number)]


def found_by(model, prefixes=None, num_slots=4, constraints=None, **options):
    search = Search([model], SearchConfig(max_length_offset=12, **options), vocabulary=WORDS)
    rows = sources()
    found = dict(search.each(rows, prefixes, num_slots=num_slots, device=CPU, constraints=constraints))
    return [[hypothesis.ids for hypothesis in found[number]] for number in range(len(rows))]


def holds(ids, phrase):
    return any(ids[start : start + len(phrase)] == phrase for start in range(len(ids)))


def written(tmp_path, *phrases):
    path = tmp_path / "forbidden"
    path.write_text("".join(" ".join(WORDS.symbols[token] for token in phrase) + "\n" for phrase in phrases), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(("field", "option", "value"), [
    ("min_length", "min-len", 3), ("unk_penalty", "unkpen", 0.5), ("no_repeat_ngram", "no-repeat-ngram-size", 2),
    ("forbidden_words", "forbidden-words", "x"), ("sampling_topk", "sampling-topk", 4),
    ("sampling_topp", "sampling-topp", 0.5)])
def test_a_rules_options_are_the_searchs(field, option, value):
    config = SearchConfig(sampling=True, **{field: value})
    assert flatten(config)[option] == value
    assert build(SearchConfig, flatten(config)) == config
    assert sum(getattr(rule, field, None) == value for rule in config.rules_in_force) == 1


def test_unknown_fields_are_refused():
    with pytest.raises(TypeError, match="no field no_repeat"):
        SearchConfig(no_repeat=3)


@pytest.mark.parametrize("options", SEARCHES.values(), ids=SEARCHES.keys())
def test_forbidden_words_are_never_said(model, tmp_path, options):
    free = found_by(model, **options)
    said = [ids for own in free for ids in own]
    words = [said[0][:1], said[-1][:1]]
    phrases = [next(ids[start : start + size] for ids in said for start in range(len(ids) - size)
                    if EOS not in ids[: start + size] and not {ids[start + size - 1]} & {words[0][0], words[1][0]})
               for size in (2, 3)]
    for forbidden in ([words[0]], words, [phrases[0]], [phrases[1]], [*words, *phrases]):
        path = written(tmp_path, *forbidden)
        for num_slots in (2, 9):
            found = found_by(model, num_slots=num_slots, forbidden_words=path, **options)
            assert found != free
            assert not [ids for own in found for ids in own for phrase in forbidden if holds(ids, phrase)]
    # Of a phrase, each word may be said.
    found = found_by(model, forbidden_words=written(tmp_path, phrases[0]), **options)
    assert any(phrases[0][-1] in ids for own in found for ids in own)


def test_what_nobody_says_may_be_forbidden(model, tmp_path):
    greedy = found_by(model, beam=1)
    said = {token for own in greedy for ids in own for token in ids}
    unsaid = [[token] for token in range(FIRST_WORD_ID, VOCABULARY_SIZE) if token not in said]
    assert found_by(model, beam=1, forbidden_words=written(tmp_path, *unsaid, [min(said - {EOS})] * 9)) == greedy


def test_what_is_demanded_outranks_what_is_forbidden(model, tmp_path):
    path = written(tmp_path, [7], [9, 8])
    prefixes = [np.array([7, 9, 8])] * 9
    for own in found_by(model, prefixes, beam=2, nbest=2, forbidden_words=path):
        for ids in own:
            assert ids[:3] == [7, 9, 8]
            assert not holds(ids[3:], [7])
            assert not holds(ids[2:], [9, 8])
    constraints = [[[7, 5]]] * 9
    for own in found_by(model, num_slots=9, constraints=constraints, beam=4, forbidden_words=path):
        assert holds(own[0], [7, 5])


def test_forbidden_words_of_a_language_model(tmp_path):
    model = tiny_language_model(seed=2)
    prompts = [row[:-1] for row in sources()]
    free = found_by(model, prompts, beam=2)
    begun = [len(prompt) for prompt in prompts]
    phrase = next([own[0][start - 1], own[0][start]] for own, start in zip(free, begun, strict=True)
                  if start and own[0][start] != EOS)
    path = written(tmp_path, phrase)
    for own, start in zip(found_by(model, prompts, beam=2, forbidden_words=path), begun, strict=True):
        assert not holds(own[0][max(0, start - 1) :], phrase)


@pytest.mark.parametrize(("text", "why"), [
    ("w1\nw2 nothing\n", "line 2: the target dictionary has no 'nothing'"), ("w1 </s>\n", "line 1: .* has no '</s>'"),
    ("\n \n", "has no words in it")])
def test_lists_of_forbidden_words_that_cannot_be_used(model, tmp_path, text, why):
    path = tmp_path / "forbidden"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=f"--forbidden-words .*{why}"):
        found_by(model, forbidden_words=str(path))
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match="is not UTF-8"):
        found_by(model, forbidden_words=str(path))
    with pytest.raises(DataError, match="cannot be read: No such file"):
        found_by(model, forbidden_words=str(path) + "x")
    with pytest.raises(ConfigError, match="needs the target dictionary"):
        Search([model], SearchConfig(forbidden_words=str(path)))


class Parity(RuleInForce):
    """After an even token an odd one: a rule with a state for each beam."""

    def __init__(self, place):
        self.last = torch.zeros(place.num_slots, place.num_beams, dtype=torch.long, device=place.device)

    def apply_(self, log_probs, step):
        is_even = torch.arange(log_probs.size(2)) % 2 == 0
        is_wrong = is_even == (self.last % 2 == 0)[:, :, None]
        is_wrong[:, :, EOS] = False
        log_probs.masked_fill_(is_wrong & (step.steps > 0)[:, None, None], -torch.inf)

    def note_(self, step, tokens, parents):
        self.last.copy_(tokens)

    def put_(self, slots):
        self.last.index_fill_(0, slots, 0)

    def select_(self, slots):
        self.last = self.last.index_select(0, slots)


@pytest.fixture
def alternating():
    @register.step_rule("alternating")
    @dataclass(frozen=True, kw_only=True)
    class Alternating(StepRule):
        alternates: bool = flag(False, "even and odd tokens take turns")

        @property
        def is_on(self):
            return self.alternates

        def build(self, place):
            return Parity(place)

    yield
    del register.step_rule._parts["alternating"]
    registry._state["version"] += 1


def test_a_rule_from_outside_is_a_rule_like_others(model, alternating):
    assert flatten(SearchConfig())["alternates"] is False
    config = build(SearchConfig, {"alternates": True, "beam": 3, "nbest": 3, "max-len-b": 12})
    together = None
    for num_slots in (2, 9):
        found = dict(Search([model], config).each(sources(), num_slots=num_slots, device=CPU))
        texts = {number: [hypothesis.ids for hypothesis in own] for number, own in found.items()}
        assert together in (None, texts)
        together = texts
        for own in texts.values():
            for ids in own:
                assert all((one + other) % 2 for one, other in pairwise(ids[:-1]))


def test_prompts_are_read_token_by_token_for_a_rule_that_does_not_know_them(alternating):
    model = tiny_language_model(seed=2)
    prompts = [row[:-1] for row in sources()]
    for prompt, own in zip(prompts, found_by(model, prompts, beam=2, alternates=True), strict=True):
        tail = own[0][max(0, len(prompt) - 1) : -1]
        assert all((one + other) % 2 for one, other in pairwise(tail))


def test_a_field_that_two_rules_have_is_given_by_flag(alternating):
    @register.step_rule("shortest")
    @dataclass(frozen=True, kw_only=True)
    class Shortest(StepRule):
        min_length: int = flag(0, "another minimum", name="other-min-len")
        is_on = False

    try:
        with pytest.raises(TypeError, match="several rules with a field min_length"):
            SearchConfig(min_length=2)
        assert build(SearchConfig, {"other-min-len": 2, "min-len": 3}).min_length == 3
    finally:
        del register.step_rule._parts["shortest"]
        registry._state["version"] += 1
