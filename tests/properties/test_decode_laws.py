"""Laws that hold for every search, whatever the model."""

import pytest
import torch

from lamina.config.search_options import SearchConfig
from lamina.decode.search import Search
from tiny import VOCABULARY_SIZE, pad, tiny_model, tiny_pair

STRATEGIES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 4, "nbest": 4},
    "unnormalized": {"beam": 3, "nbest": 3, "unnormalized": True},
    "lenpen": {"beam": 3, "nbest": 3, "length_penalty": 0.4},
    "own length": {"beam": 3, "nbest": 3, "max_length_factor": 0.8, "max_length_offset": 2},
    "match length": {"beam": 3, "nbest": 3, "match_source_length": True},
    "diverse": {"beam": 4, "nbest": 4, "diverse_beam_groups": 2},
    "no repeats": {"beam": 4, "nbest": 4, "no_repeat_ngram": 2},
    "temperature": {"beam": 3, "nbest": 3, "temperature": 1.7},
    "sampling": {"beam": 3, "nbest": 3, "sampling": True},
    "topk": {"beam": 3, "nbest": 3, "sampling": True, "sampling_topk": 5},
    "topp": {"beam": 3, "nbest": 3, "sampling": True, "sampling_topp": 0.7},
}


@pytest.fixture(scope="module")
def model():
    model = tiny_model(seed=3, share_all=False)
    with torch.no_grad():
        # Likely enough that hypotheses end by themselves, at different lengths.
        model.head.table.weight[2] += 0.5 * model.head.table.weight[5]
    return model


@pytest.fixture(params=STRATEGIES.values(), ids=STRATEGIES.keys())
def config(request):
    return SearchConfig(**{"max_length_offset": 14, **request.param})


def sources(number=7, seed=0):
    """Rows of different lengths, padded on the right."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 9, (number,), generator=generator).tolist()
    rows = [torch.cat([torch.randint(4, VOCABULARY_SIZE, (length,), generator=generator), torch.tensor([2])])
            for length in lengths]
    return rows, torch.cat([pad(row[None], right=9 - len(row)) for row in rows])


def run(model, config, source, numbers=None):
    models = model if isinstance(model, list) else [model]
    return Search(models, config).run(source, seeds=[(1, number) for number in numbers or range(len(source))])


def same(ours, theirs):
    assert [[hypothesis.ids for hypothesis in found] for found in ours] == [
        [hypothesis.ids for hypothesis in found] for found in theirs]
    for found, expected in zip(ours, theirs, strict=True):
        for one, other in zip(found, expected, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
            assert one.token_scores == pytest.approx(other.token_scores, abs=1e-4)


def test_results_do_not_depend_on_the_batch(model, config):
    rows, batch = sources()
    together = run(model, config, batch)
    same(together, [run(model, config, row[None], [number])[0] for number, row in enumerate(rows)])


def test_results_do_not_depend_on_the_order(model, config):
    _, batch = sources()
    order = [3, 0, 6, 5, 1, 2, 4]
    shuffled = run(model, config, batch[order], order)
    together = run(model, config, batch)
    same(shuffled, [together[number] for number in order])


@pytest.mark.parametrize(("left", "right"), [(4, 0), (0, 4)])
def test_results_do_not_depend_on_padding(model, config, left, right):
    _, batch = sources()
    same(run(model, config, pad(batch, left, right)), run(model, config, batch))


def test_an_ensemble_of_a_model_with_itself_is_the_model(model, config):
    _, batch = sources()
    same(run([model, model, model], config, batch), run(model, config, batch))


def test_the_best_come_first_and_each_ends_once(model, config):
    _, batch = sources()
    for found in run(model, config, batch):
        scores = [hypothesis.score for hypothesis in found]
        assert 1 <= len(found) <= config.nbest
        assert scores == sorted(scores, reverse=True)
        for hypothesis in found:
            assert hypothesis.ids.index(2) == len(hypothesis.ids) - 1
            assert len(hypothesis.token_scores) == len(hypothesis.ids)
            assert 1 not in hypothesis.ids


@pytest.mark.parametrize("name", ["greedy", "beam", "unnormalized", "own length", "no repeats", "sampling", "topp"])
def test_token_scores_are_those_of_forced_decoding(model, name):
    _, batch = sources()
    found = run(model, SearchConfig(**{"max_length_offset": 14, **STRATEGIES[name]}), batch)
    for row, hypotheses in zip(batch, found, strict=True):
        for hypothesis in hypotheses:
            scores = model.log_probs(row[None], torch.tensor([[2, *hypothesis.ids[:-1]]]))[0]
            expected = scores.gather(1, torch.tensor(hypothesis.ids)[:, None])[:, 0].tolist()
            assert hypothesis.token_scores == pytest.approx(expected, abs=2e-5)


def test_hypotheses_differ_unless_drawn(model):
    _, batch = sources()
    for found in run(model, SearchConfig(beam=4, nbest=4, max_length_offset=14), batch):
        assert len({tuple(hypothesis.ids) for hypothesis in found}) == 4


def test_beam_1_is_greedy(model):
    _, batch = sources()
    for row, found in zip(batch, run(model, SearchConfig(beam=1, max_length_offset=14), batch), strict=True):
        ids: list[int] = []
        while ids[-1:] != [2]:
            scores = model.log_probs(row[None], torch.tensor([[2, *ids]]))[0, -1]
            scores[1] = -torch.inf
            if not ids:
                scores[2] = -torch.inf
            ids.append(2 if len(ids) == 14 else int(scores.argmax()))
        assert found[0].ids == ids


def test_a_wide_beam_finds_the_best_of_all(model):
    """Every hypothesis of up to 2 tokens, against a beam that has room for all of them."""
    source, _ = tiny_pair(batch=2)
    words = [number for number in range(VOCABULARY_SIZE) if number not in (1, 2)]
    candidates = [[word, 2] for word in words] + [[one, two, 2] for one in words for two in words]
    for row in source:
        target_in = torch.tensor([[2, *ids[:-1], *[1] * (3 - len(ids))] for ids in candidates])
        scores = model.log_probs(row.expand(len(candidates), -1), target_in)
        means = [sum(scores[number, place, token].item() for place, token in enumerate(ids)) / len(ids)
                 for number, ids in enumerate(candidates)]
        best = max(range(len(candidates)), key=means.__getitem__)
        found = run(model, SearchConfig(beam=len(candidates), max_length_offset=2), row[None])[0][0]
        assert found.ids == candidates[best]
        assert found.score == pytest.approx(means[best], abs=1e-5)


def test_same_seed_same_draws_and_another_seed_others(model):
    _, batch = sources()
    config = SearchConfig(beam=5, nbest=5, sampling=True, max_length_offset=14)
    same(run(model, config, batch), run(model, config, batch))
    ids = [[hypothesis.ids for hypothesis in found] for found in run(model, config, batch)]
    others = [[hypothesis.ids for hypothesis in found] for found in run(model, config, batch, range(100, 107))]
    assert ids != others


@pytest.mark.parametrize("changes", [{}, {"is_pre_norm": True}, {"has_norm": True}])
def test_steps_of_several_beams_match_the_full_forward(changes):
    """Beams change places at each step, and a sentence leaves on the way."""
    model = tiny_model(**changes)
    source, _ = tiny_pair(batch=3)
    generator = torch.Generator().manual_seed(1)
    state = model.start(source, 40, num_beams=4)
    rows, past = torch.arange(3), torch.empty(3, 4, 0, dtype=torch.long)
    for step in range(36):  # past the first memory that is set aside
        tokens = torch.randint(4, VOCABULARY_SIZE, (len(rows), 4), generator=generator)
        past = torch.cat([past, tokens[:, :, None]], dim=2)
        scores = model.step(tokens, state)
        expected = model.log_probs(source[rows].repeat_interleave(4, dim=0), past.flatten(0, 1))[:, -1]
        torch.testing.assert_close(scores.flatten(0, 1), expected, rtol=1e-4, atol=2e-5)
        parents = torch.randint(4, (len(rows), 4), generator=generator)
        state.reorder_(parents)
        past = past.gather(1, parents[:, :, None].expand_as(past))
        if step == 5:
            kept = torch.tensor([0, 2])
            state.select_(kept)
            rows, past = rows[kept], past[kept]
