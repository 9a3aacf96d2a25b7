"""Sentences that share slots: whoever is finished makes room, and nobody notices."""

import numpy as np
import pytest
import torch

from lamina.config.search_options import SearchConfig
from lamina.cuda_graphs.recorder import Recorder
from lamina.decode import scheduler
from lamina.decode.batched_search import search_rows, sessions
from lamina.decode.beam_step import BeamStep
from lamina.decode.scheduler import Scheduler, power_of_two
from lamina.decode.search import Search
from lamina.nn.cache import KeyValues
from lamina.nn.stack import ActiveLayers
from lamina.text.vocabulary import EOS, PAD
from tiny import FUSIONS, VOCABULARY_SIZE, tiny_language_model, tiny_model

CPU = torch.device("cpu")
STRATEGIES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 5, "nbest": 5},
    "unnormalized": {"beam": 3, "nbest": 3, "unnormalized": True},
    "lenpen": {"beam": 3, "nbest": 3, "length_penalty": 0.4, "unk_penalty": 1.5},
    "own length": {"beam": 3, "nbest": 3, "max_length_factor": 0.8, "max_length_offset": 2},
    "match length": {"beam": 3, "nbest": 3, "match_source_length": True},
    "at least": {"beam": 3, "nbest": 3, "min_length": 6},
    "diverse": {"beam": 4, "nbest": 4, "diverse_beam_groups": 2},
    "no repeats": {"beam": 4, "nbest": 4, "no_repeat_ngram": 2},
    "no token twice": {"beam": 2, "nbest": 2, "no_repeat_ngram": 1},
    "sampling": {"beam": 3, "nbest": 3, "sampling": True},
    "topp": {"beam": 3, "nbest": 3, "sampling": True, "sampling_topp": 0.7, "temperature": 1.3},
}


def lively(model):
    """Likely enough to end that hypotheses do so by themselves, at different lengths."""
    with torch.no_grad():
        model.head.table.weight[EOS] += 0.5 * model.head.table.weight[5]
    return model


@pytest.fixture(scope="module")
def model():
    return lively(tiny_model(seed=3, share_all=False))


def sources(number=19, seed=0):
    generator = np.random.default_rng(seed)
    return [np.append(generator.integers(4, VOCABULARY_SIZE, size), EOS) for size in generator.integers(1, 10, number)]


def config_of(options):
    return SearchConfig(**{"max_length_offset": 14, **options})


def alone(search, rows, prefixes=None):
    """Every sentence by itself."""
    return {number: next(search.each([row], None if prefixes is None else [prefixes[number]], num_slots=1, device=CPU,
                                     seeds=[(7, number)]))[1] for number, row in enumerate(rows)}


def together(search, rows, num_slots, prefixes=None):
    seeds = [(7, number) for number in range(len(rows))]
    found = list(search.each(rows, prefixes, num_slots=num_slots, device=CPU, seeds=seeds))
    assert sorted(number for number, _ in found) == list(range(len(rows)))
    return dict(found)


def check_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for number, expected in theirs.items():
        assert [hypothesis.ids for hypothesis in ours[number]] == [hypothesis.ids for hypothesis in expected]
        for one, other in zip(ours[number], expected, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.token_scores == pytest.approx(other.token_scores, abs=1e-4)


@pytest.mark.parametrize("num_slots", [1, 2, 8, 19, 64])
@pytest.mark.parametrize("options", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_company_changes_nothing(model, options, num_slots):
    search, rows = Search([model], config_of(options)), sources()
    check_same(together(search, rows, num_slots), alone(search, rows))


class Replayed:
    """A recording that a processor can play."""

    def __init__(self, function):
        self.replay = function


@pytest.mark.parametrize("num_slots", [1, 8, 19])
@pytest.mark.parametrize("options", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_as_on_a_gpu(model, options, num_slots, monkeypatch):
    """Flags that come a step late, lengths and widths in powers of two, encoder passes of one size."""
    search, rows = Search([model], config_of(options)), sources()
    expected = alone(search, rows)
    pretend_(monkeypatch)
    check_same(together(search, rows, num_slots), expected)


@pytest.mark.parametrize("name", sorted(STRATEGIES.keys() - {"match length", "no token twice"}))  # these are short
def test_long_sentences_as_on_a_gpu(name, monkeypatch):
    """Nobody leaves there when none is waiting: the finished may be further than the power of two that others have reached."""
    config = SearchConfig(**{**STRATEGIES[name], "max_length_factor": 4.0, "max_length_offset": 0})
    search = Search([tiny_model(seed=3, share_all=False)], config)
    rows = sources(20, seed=1)
    expected = alone(search, rows)
    assert max(len(hypothesis.ids) for found in expected.values() for hypothesis in found) > scheduler.SHORTEST_LENGTH
    pretend_(monkeypatch)
    check_same(together(search, rows, 8), expected)


def pretend_(monkeypatch):
    monkeypatch.setattr(scheduler, "works_by_itself", lambda device: True)
    monkeypatch.setattr(Recorder, "capture", lambda self, function: Replayed(function))


@pytest.mark.parametrize("kind", ["prefixes", "prompts", "fusion", "ensemble"])
def test_everything_else_as_on_a_gpu(model, kind, monkeypatch):
    models = {"prompts": [tiny_language_model(seed=2)], "fusion": [lively(tiny_model(seed=1, **FUSIONS["both"]))],
              "ensemble": [model, tiny_model(seed=4, share_all=False)]}.get(kind, [model])
    search, rows = Search(models, config_of({"beam": 3, "nbest": 3})), sources(11)
    prefixes = {"prefixes": [np.array([7, 8, 9, EOS])[: number % 5] for number in range(11)],
                "prompts": [row[:-1] for row in rows]}.get(kind)
    expected = alone(search, rows, prefixes)
    pretend_(monkeypatch)
    check_same(together(search, rows, 4, prefixes), expected)


def test_steps_that_are_like_the_last_one_are_not_looked_at_again(model, monkeypatch):
    """And are what a look at them would find."""
    pretend_(monkeypatch)
    looks, dues, schedulers = [], [], []
    look_ahead, step, step_ = Scheduler._look_ahead, Scheduler.step, BeamStep.step_

    def checked(slots, due):
        (scheduler,) = schedulers
        before = scheduler.due, scheduler.due_until
        look_ahead(scheduler, slots)
        assert scheduler.due == due
        scheduler.due, scheduler.due_until = before
        dues.append(due)
        step_(slots, due)

    def watched(scheduler):
        schedulers[:] = [scheduler]
        yield from step(scheduler)

    monkeypatch.setattr(Scheduler, "_look_ahead", lambda *given: looks.append(given) or look_ahead(*given))
    monkeypatch.setattr(Scheduler, "step", watched)
    monkeypatch.setattr(BeamStep, "step_", checked)
    rows = sources()
    prefixes = [row[: number % 4] for number, row in enumerate(rows)]
    for num_slots in (1, 8):
        found = dict(Search([model], SearchConfig(beam=2, max_length_factor=2.0, max_length_offset=24)).each(
            rows, prefixes, num_slots=num_slots, device=CPU))
        assert len(found) == len(rows)
    assert {due.has_ends for due in dues} == {due.has_prefixes for due in dues} == {False, True}
    assert len({due.length for due in dues}) > 1
    assert len(looks) < len(dues) / 2


@pytest.mark.parametrize("order", ["longest first", "shortest first"])
def test_any_order(model, order):
    search = Search([model], config_of({"beam": 5, "nbest": 5}))
    rows = sorted(sources(), key=len, reverse=order == "longest first")
    check_same(together(search, rows, 4), alone(search, rows))


def test_the_first_done_are_the_first_found():
    """Results do not wait for the sentences that came in with them."""
    config = SearchConfig(beam=2, max_length_factor=1.0, max_length_offset=0, min_length=0)
    rows = [np.append(np.full(9, 6), EOS), np.array([5, EOS]), np.array([7, EOS])]
    search = Search([tiny_model(seed=3, share_all=False)], config)  # seldom ends by itself
    assert [number for number, _ in search.each(rows, num_slots=2, device=CPU)] == [1, 2, 0]


@pytest.mark.parametrize("changes", FUSIONS.values(), ids=FUSIONS.keys())
def test_fusion_keeps_to_its_own_source(changes):
    search, rows = Search([lively(tiny_model(seed=1, **changes))], config_of({"beam": 3, "nbest": 3})), sources(9)
    check_same(together(search, rows, 3), alone(search, rows))


def test_ensembles(model):
    search = Search([model, tiny_model(seed=4, share_all=False)], config_of({"beam": 3, "nbest": 3}))
    check_same(together(search, sources(9), 3), alone(search, sources(9)))


@pytest.mark.parametrize("options", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_a_finished_sentence_may_wait_among_shorter_ones(options):
    """Several leave together: till then its slot stays where it ended, further than any neighbour that still goes on."""
    model = tiny_model(seed=3, share_all=False)  # seldom ends by itself
    search = Search([model], SearchConfig(**{**options, "max_length_factor": 1.0, "max_length_offset": 0}))
    rows = [np.append(np.arange(4, 4 + size), EOS) for size in (16, *[3, 4, 5, 6, 7, 8] * 30)]
    check_same(together(search, rows, 24), alone(search, rows))


def test_prefixes_of_different_lengths(model):
    search, rows = Search([model], config_of({"beam": 3, "nbest": 3})), sources(9)
    prefixes = [np.array([7, 8, 9, EOS])[: number % 5] for number in range(9)]
    found = together(search, rows, 3, prefixes)
    check_same(found, alone(search, rows, prefixes))
    assert all(hypothesis.ids[: len(prefixes[number])] == prefixes[number].tolist()
               for number, hypotheses in found.items() for hypothesis in hypotheses)


@pytest.mark.parametrize("options", [{"beam": 3, "nbest": 3}, {"beam": 1}, {"beam": 2, "nbest": 2, "no_repeat_ngram": 2}])
def test_prompts_of_different_lengths(options):
    search, rows = Search([tiny_language_model(seed=2)], SearchConfig(max_length_offset=9, **options)), sources(9)
    prompts = [row[:-1] for row in rows]
    check_same(together(search, rows, 3, prompts), alone(search, rows, prompts))


def test_memory_grows_while_others_wait():
    model = tiny_model(seed=3, share_all=False)  # seldom ends by itself
    search = Search([model], SearchConfig(beam=2, nbest=2, max_length_factor=5.0, max_length_offset=0))
    rows = sorted(sources(8, seed=5), key=len)
    found = together(search, rows, 3)
    assert max(len(hypothesis.ids) for hypotheses in found.values() for hypothesis in hypotheses) > 40
    check_same(found, alone(search, rows))


# -- open: sentences come while others run

def joining(search, rows, num_slots, prefixes=None, phrases=None, seed=0, width=16):
    """A few sentences before each step, at random."""
    scheduler, sentences, generator = search.open(num_slots, CPU, width=width), search.sentences(), np.random.default_rng(seed)
    waiting = [sentences.sentence(number, row, None if prefixes is None else prefixes[number], seed=(7, number),
                                  phrases=() if phrases is None else phrases[number]) for number, row in enumerate(rows)]
    found, most = {}, 0
    while waiting or not scheduler.is_idle:
        for _ in range(generator.choice([0, 0, 0, 0, 0, 1, 2, 5])):
            if waiting:
                scheduler.add(waiting.pop())
        for number, own in scheduler.step():
            assert number not in found
            found[number] = own
        most = max(most, len(scheduler.who))
    assert most <= num_slots
    return found


@pytest.mark.parametrize("num_slots", [1, 3, 64])
@pytest.mark.parametrize("options", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_sentences_may_join(model, options, num_slots):
    search, rows = Search([model], config_of(options)), sources()
    check_same(joining(search, rows, num_slots), alone(search, rows))


@pytest.mark.parametrize("num_slots", [1, 3, 24])
@pytest.mark.parametrize("options", STRATEGIES.values(), ids=STRATEGIES.keys())
def test_sentences_may_join_as_on_a_gpu(model, options, num_slots, monkeypatch):
    search, rows = Search([model], config_of(options)), sources()
    expected = alone(search, rows)
    pretend_(monkeypatch)
    check_same(joining(search, rows, num_slots), expected)


@pytest.mark.parametrize("is_on_gpu", [False, True])
@pytest.mark.parametrize("kind", ["prefixes", "prompts", "fusion", "ensemble", "some layers"])
def test_anything_may_join(model, kind, is_on_gpu, monkeypatch):
    models = {"prompts": [tiny_language_model(seed=2)], "fusion": [lively(tiny_model(seed=1, **FUSIONS["both"]))],
              "ensemble": [model, tiny_model(seed=4, share_all=False)]}.get(kind, [model])
    active = ActiveLayers((True, False), (False, True)) if kind == "some layers" else ActiveLayers()
    search, rows = Search(models, config_of({"beam": 3, "nbest": 3}), active), sources(21)
    prefixes = {"prefixes": [np.array([7, 8, 9, EOS])[: number % 5] for number in range(21)],
                "prompts": [row[:-1] for row in rows]}.get(kind)
    expected = alone(search, rows, prefixes)
    if is_on_gpu:
        pretend_(monkeypatch)
    check_same(joining(search, rows, 5, prefixes), expected)


@pytest.mark.parametrize("changes", FUSIONS.values(), ids=FUSIONS.keys())
def test_whatever_is_read_of_a_source_grows_with_it(changes):
    search = Search([lively(tiny_model(seed=1, **changes))], config_of({"beam": 3, "nbest": 3}))
    rows = sorted(sources(12), key=len, reverse=True)  # they join from the end: ever longer ones
    check_same(joining(search, rows, 4), alone(search, rows))


@pytest.mark.parametrize("order", ["ordered", "unordered"])
@pytest.mark.parametrize("num_slots", [1, 4, 64])
def test_sentences_with_phrases_may_join(model, order, num_slots):
    search, rows = Search([model], config_of({"beam": 4, "nbest": 2, "constraint_order": order})), sources()
    phrases = [[[9, 10], [11]][: number % 3] for number in range(len(rows))]
    together = joining(search, rows, num_slots, phrases=phrases)
    one_by_one = {number: next(search.each([row], num_slots=1, device=CPU, constraints=[phrases[number]]))[1]
                  for number, row in enumerate(rows)}
    check_same(together, one_by_one)
    for number, found in together.items():
        assert all(phrase[0] in hypothesis.ids for phrase in phrases[number] for hypothesis in found)


def test_phrases_change_hands(model):
    """Known sentences with phrases need no slot each either."""
    search, rows = Search([model], config_of({"beam": 4, "nbest": 2})), sources()
    phrases = [[[9, 10], [11]][: number % 3] for number in range(len(rows))]
    found = {size: dict(search.each(rows, num_slots=size, device=CPU, constraints=phrases)) for size in (3, len(rows))}
    check_same(found[3], found[len(rows)])


@pytest.mark.parametrize("is_on_gpu", [False, True])
def test_sentences_may_be_dropped(model, is_on_gpu, monkeypatch):
    search, rows = Search([model], config_of({"beam": 3})), sources()
    expected = alone(search, rows)
    if is_on_gpu:
        pretend_(monkeypatch)
    scheduler, sentences, found = search.open(6, CPU, width=16), search.sentences(), {}
    for number, row in enumerate(rows):
        scheduler.add(sentences.sentence(number, row, seed=(7, number)))
    found.update(scheduler.step())
    dropped = {0, 3, 4, 17}  # three that run, one that waits
    scheduler.drop(dropped)
    found.update(scheduler)
    check_same(found, {number: own for number, own in expected.items() if number not in dropped})
    assert scheduler.num_sentences == 0
    scheduler.drop({5})  # who is not there is no trouble


@pytest.mark.parametrize("is_on_gpu", [False, True])
def test_an_open_scheduler_may_rest(model, is_on_gpu, monkeypatch):
    search, rows = Search([model], config_of({"beam": 3})), sources()
    expected = alone(search, rows)
    if is_on_gpu:
        pretend_(monkeypatch)
    scheduler, sentences, found = search.open(4, CPU, width=16), search.sentences(), {}
    assert list(scheduler.step()) == []
    for number, row in enumerate(rows):
        scheduler.add(sentences.sentence(number, row))
        if number % 3 == 0:
            found.update(scheduler)
            assert scheduler.is_idle
    found.update(scheduler)
    check_same(found, expected)


@pytest.mark.parametrize("order", [None, "ordered"])
def test_who_joins_moves_nobody_elses_past(model, order, monkeypatch):
    """As many clients as slots, each with one sentence after another: those that run stay where they are."""
    copied, groups = [], []
    select, extend = KeyValues.select_, BeamStep.extend_
    monkeypatch.setattr(KeyValues, "select_", lambda self, rows, length, **how: (
        copied.append(0 if isinstance(rows, slice) else len(rows)), select(self, rows, length, **how))[1])
    monkeypatch.setattr(BeamStep, "extend_", lambda self, entries: (groups.append(len(entries.ids)), extend(self, entries))[1])
    search, rows = Search([model], config_of({"beam": 3, "constraint_order": order})), sources(60)
    expected = alone(search, rows)
    copied.clear()
    scheduler, sentences, found = search.open(8, CPU, width=16), search.sentences(), {}
    coming = iter(enumerate(rows))
    while len(found) < len(rows):
        if scheduler.num_sentences < 8 and (new := next(coming, None)) is not None:
            scheduler.add(sentences.sentence(*new, seed=(7, new[0])))  # one at a time: never are all there at once
        found.update(scheduler.step())
    check_same(found, expected)
    assert 3 * len(groups) <= 2 * len(rows)  # some come together
    assert sum(copied) <= len(rows) * len(model.decoder.layers)  # sooner, several times for each that comes or goes


def reference(model, config, source):
    """Beam search written down naively, a whole forward pass for every hypothesis and step."""
    limit = min(int(config.max_length_factor * len(source) + config.max_length_offset), model.max_target_positions - 1)
    beams, ended = [([], 0.0)], []
    for step in range(limit + 1):
        candidates = []
        for ids, score in beams:
            log_probs = model.log_probs(torch.tensor([source.tolist()]), torch.tensor([[EOS, *ids]]))[0, -1]
            for token, own in enumerate(log_probs.tolist()):
                if token != PAD and (token != EOS or step >= config.min_length) and (step < limit or token == EOS):
                    candidates.append(([*ids, token], score + own))
        candidates.sort(key=lambda candidate: -candidate[1])
        for ids, score in candidates[: config.beam]:
            if ids[-1] == EOS and len(ended) < config.beam:
                ended.append((ids, score / len(ids) ** config.length_penalty))
        beams = [candidate for candidate in candidates[: 2 * config.beam] if candidate[0][-1] != EOS][: config.beam]
        if len(ended) == config.beam or not beams:
            break
    return sorted(ended, key=lambda hypothesis: -hypothesis[1])


@pytest.mark.parametrize("beam", [1, 5])
def test_against_a_search_written_down_naively(model, beam):
    config, rows = SearchConfig(beam=beam, nbest=beam, max_length_factor=1.0, max_length_offset=3), sources(7)
    for number, found in together(Search([model], config), rows, 3).items():
        expected = reference(model, config, rows[number])
        assert [hypothesis.ids for hypothesis in found] == [ids for ids, _ in expected]
        assert [hypothesis.score for hypothesis in found] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_a_given_up_search_leaves_nothing_behind(model):
    search, rows = Search([model], config_of({"beam": 3})), sources()
    found = search.each(rows, num_slots=4, device=CPU)
    next(found)
    found.close()
    check_same(together(search, rows, 4), alone(search, rows))


def test_stretches_of_rows_for_a_gpu():
    rows = [np.zeros(length) for length in (300, 290, 200, 80, 70, 60, 9, 8, 8, 5)]
    assert list(sessions([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]], rows)) == [
        ([0, 1, 2, 3], 2), ([4, 5], 2), ([6, 7, 8, 9], 2)]
    # What is narrow anyway goes through in one stretch.
    assert list(sessions([[5], [6, 7], [8, 9]], rows)) == [([5, 6, 7, 8, 9], 1)]
    assert list(sessions([], rows)) == []


def test_rows_with_attention_come_back_with_their_places(model):
    search, rows = Search([model], config_of({"beam": 2, "nbest": 2})), sources(70)
    for found in search_rows(search, rows, device="cpu", batch_size=8, with_attention=True):
        for hypothesis in found.hypotheses:
            assert hypothesis.attention.shape == (len(hypothesis.ids), len(rows[found.index]))


def test_powers_of_two():
    assert [power_of_two(number, 16) for number in (0, 1, 16, 17, 32, 33)] == [16, 16, 16, 32, 32, 64]
