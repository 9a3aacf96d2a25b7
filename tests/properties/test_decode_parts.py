"""The parts of a search, each by itself."""

import numpy as np
import pytest
import torch

from lamina.config.search_options import SearchConfig
from lamina.data.batching import length_batches
from lamina.decode.alignment import alignment_of, cross_attention
from lamina.decode.batched_search import search_rows
from lamina.decode.candidates import first_scores, most_likely, most_likely_by_group
from lamina.decode.sampling import draw, keep_likely_, uniforms_for
from lamina.decode.scoring import pad_targets, token_log_probs
from lamina.decode.search import Search
from lamina.decode.step_rules import Due, Rules, forbid_repetition_, length_limit
from lamina.nn.cache import KeyValues, StepState, select_rows
from lamina.nn.stack import ALL_LAYERS
from tiny import pad, tiny_model, tiny_pair

CPU = torch.device("cpu")


def test_most_likely_takes_twice_the_beam_over_all_beams():
    log_probs = torch.tensor([[[0.5, 0.1, 0.3, 0.1], [0.2, 0.6, 0.1, 0.1]]]).log()
    found = most_likely(log_probs, torch.tensor([[0.0, -0.1]]))
    assert found.tokens.tolist() == [[1, 0, 2, 0]]
    assert found.parents.tolist() == [[1, 0, 0, 1]]
    torch.testing.assert_close(found.scores[0, 0], torch.tensor(0.6).log() - 0.1)


@pytest.mark.parametrize("vocabulary_size", [3, 63, 64, 65, 200, 1000])
@pytest.mark.parametrize("num_beams", [1, 4])
def test_most_likely_misses_nothing(vocabulary_size, num_beams):
    """Against all sums, sorted; a beam that must not go on, and tokens that must not be said."""
    generator = torch.Generator().manual_seed(vocabulary_size)
    log_probs = torch.randn(5, num_beams, vocabulary_size, generator=generator)
    log_probs[torch.rand(log_probs.shape, generator=generator) < 0.3] = -torch.inf
    scores = torch.randn(5, num_beams, generator=generator)
    scores[1, num_beams - 1] = -torch.inf
    log_probs[2, :, 1:] = -torch.inf
    found = most_likely(log_probs.clone(), scores)
    totals = (log_probs + scores[:, :, None]).flatten(1)
    number = min(2 * num_beams, totals.size(1))
    assert torch.equal(found.scores, totals.sort(dim=1, descending=True).values[:, :number])
    assert torch.equal(totals.gather(1, found.parents * vocabulary_size + found.tokens), found.scores)


def test_a_later_group_pays_for_what_earlier_ones_use():
    log_probs = torch.tensor([0.4, 0.3, 0.2, 0.1]).log().expand(1, 2, 4).clone()
    found = most_likely_by_group(log_probs, torch.zeros(1, 2), num_groups=2, strength=2.0)
    # Candidates alternate between the groups: the first likes 0 and 1, the second then has 2 and 3 left.
    assert found.tokens.tolist() == [[0, 2, 1, 3]]
    assert found.parents.tolist() == [[0, 1, 0, 1]]


def test_at_first_only_one_beam_of_a_group_counts():
    infinity = torch.inf
    assert first_scores(SearchConfig(beam=3), 1, CPU).tolist() == [[0, -infinity, -infinity]]
    assert first_scores(SearchConfig(beam=4, diverse_beam_groups=2), 1, CPU).tolist() == [[0, 0, -infinity, -infinity]]
    assert first_scores(SearchConfig(beam=2, sampling=True), 1, CPU).tolist() == [[0, 0]]


def test_draws_follow_the_distribution():
    probs = torch.tensor([0.5, 0.0, 0.2, 0.3])
    uniforms = uniforms_for([(7,)], 20_000, 1)[0]
    tokens = draw(probs.log().expand(1, 20_000, 4), uniforms)
    shares = torch.bincount(tokens.flatten(), minlength=4) / 20_000
    torch.testing.assert_close(shares, probs, rtol=0, atol=0.015)
    assert shares[1] == 0


@pytest.mark.parametrize(("limits", "allowed"), [({"topk": 2}, {0, 3}), ({"topp": 0.49}, {0}), ({"topp": 0.51}, {0, 3}),
                                                 ({"topp": 0.9}, {0, 2, 3}), ({"topp": 1.0}, {0, 1, 2, 3}),
                                                 ({"topk": 9}, {0, 1, 2, 3})])
def test_draws_keep_to_the_likely(limits, allowed):
    log_probs = torch.tensor([0.5, 0.05, 0.15, 0.3]).log().repeat(1, 2000, 1)
    keep_likely_(log_probs, **limits)
    tokens = draw(log_probs, uniforms_for([(1, 2)], 2000, 1)[0])
    assert set(tokens.flatten().tolist()) == allowed


def test_the_extremes_of_a_draw_stay_inside():
    log_probs = torch.tensor([-torch.inf, 0.0, -200.0, -torch.inf]).expand(1, 2, 4)
    assert draw(log_probs, torch.tensor([[0.0, 0.99999999]])).tolist() == [[1, 1]]


def test_draws_of_a_sentence_do_not_depend_on_the_number_of_steps():
    assert torch.equal(uniforms_for([(1, 5)], 3, 4), uniforms_for([(1, 2), (1, 5)], 3, 9)[:4, 1:])


def test_lengths_come_from_a_sentences_own_source():
    def limits(**options):
        return [length_limit(SearchConfig(**options), length) for length in (3, 9)]

    assert limits() == [200, 200]
    assert limits(max_length_factor=1.5, max_length_offset=1) == [5, 14]
    assert limits(match_source_length=True) == [2, 8]
    # A minimum wins over what a short source allows.
    assert limits(max_length_factor=1.0, max_length_offset=0, min_length=5) == [5, 9]


def test_lengths_may_come_from_the_longest_of_the_batch():
    model, options = tiny_model(seed=3, share_all=False), {"beam": 1, "min_length": 0, "max_length_factor": 1.0}
    source = pad(torch.tensor([[5, 6, 2]]), right=6)
    source = torch.cat([source, torch.tensor([[5, 6, 7, 8, 9, 10, 11, 12, 2]])])
    found = Search([model], SearchConfig(max_length_offset=0, uses_padded_width=True, **options)).run(source)
    assert [len(own[0].ids) - 1 for own in found] == [9, 9]
    found = Search([model], SearchConfig(max_length_offset=0, **options)).run(source)
    assert [len(own[0].ids) - 1 for own in found] == [3, 9]


def test_rules_in_turn():
    config = SearchConfig(beam=1, min_length=1, max_length_offset=2, unk_penalty=3.0)
    rules = Rules(config, torch.tensor([2, 2]), torch.tensor([0, 0]), torch.tensor([[7], [1]]))
    scores = torch.zeros(2, 1, 9)
    rules.apply_(scores, torch.tensor([0, 0]), Due(1))
    assert scores[0, 0].isfinite().nonzero().flatten().tolist() == [7]
    assert scores[1, 0].isfinite().nonzero().flatten().tolist() == [0, 3, 4, 5, 6, 7, 8]
    assert scores[1, 0, 3] == -3.0
    scores = torch.zeros(2, 1, 9)
    rules.apply_(scores, torch.tensor([2, 2]), Due(3))
    assert scores.isfinite().nonzero().tolist() == [[0, 0, 2], [1, 0, 2]]


def test_rules_know_each_sentences_step():
    config = SearchConfig(beam=1, min_length=2, max_length_offset=3)
    limits, num_given = torch.tensor([3, 3, 3]), torch.tensor([0, 0, 0])
    rules = Rules(config, limits, num_given, torch.tensor([[7, 8], [7, 8], [7, 8]]))
    scores = torch.zeros(3, 1, 9)
    rules.apply_(scores, torch.tensor([1, 2, 3]), Due(4))
    allowed = [scores[row, 0].isfinite().nonzero().flatten().tolist() for row in range(3)]
    assert allowed == [[8], [0, 2, 3, 4, 5, 6, 7, 8], [2]]
    # What the host rules out is not looked at.
    scores = torch.zeros(3, 1, 9)
    rules.apply_(scores, torch.tensor([1, 2, 3]), Due(4, has_ends=False, has_prefixes=False))
    assert [scores[row, 0].isfinite().sum().item() for row in range(3)] == [7, 8, 8]


def test_a_model_without_positions_left_must_end():
    model = tiny_model()
    source, _ = tiny_pair(batch=1)
    found = Search([model], SearchConfig(beam=2, min_length=150, max_length_offset=150)).run(source)
    assert len(found[0][0].ids) == model.max_target_positions


def test_repetition_is_forbidden_by_hypothesis():
    scores = torch.zeros(1, 2, 10)
    forbid_repetition_(scores, torch.tensor([[[4, 5, 6, 4, 5], [4, 5, 6, 7, 8]]]), torch.tensor([5]), 3)
    assert scores.isinf().nonzero().tolist() == [[0, 0, 6]]
    forbid_repetition_(scores, torch.tensor([[[4], [5]]]), torch.tensor([1]), 3)
    assert scores.isinf().sum() == 1


def test_repetition_counts_what_is_said_so_far():
    tokens = torch.tensor([[[4, 5, 6, 4, 5]], [[4, 5, 6, 4, 5]], [[4, 5, 6, 4, 5]]])
    scores = torch.zeros(3, 1, 10)
    forbid_repetition_(scores, tokens, torch.tensor([5, 4, 0]), 2)
    assert scores.isinf().nonzero().tolist() == [[0, 0, 6], [1, 0, 5]]
    scores = torch.zeros(3, 1, 10)
    forbid_repetition_(scores, tokens, torch.tensor([3, 1, 0]), 1)
    assert scores.isinf().nonzero().tolist() == [[0, 0, 4], [0, 0, 5], [0, 0, 6], [1, 0, 4]]


def test_a_prefix_is_said_first_and_may_be_the_whole():
    model = tiny_model()
    source, _ = tiny_pair(batch=3)
    prefix = torch.tensor([[9, 8, 2], [7, 7, 1], [1, 1, 1]])
    config = SearchConfig(beam=3, nbest=3, max_length_offset=8, no_repeat_ngram=1)
    whole, begun, free = Search([model], config).run(source, prefix)
    assert [hypothesis.ids for hypothesis in whole] == [[9, 8, 2]]
    assert all(hypothesis.ids[:2] == [7, 7] for hypothesis in begun)
    assert [hypothesis.ids for hypothesis in free] == [
        hypothesis.ids for hypothesis in Search([model], config).run(source[2:])[0]]


def test_a_model_of_nan_still_gives_an_answer():
    model = tiny_model()
    torch.nn.init.constant_(model.head.table.weight, torch.nan)
    source, _ = tiny_pair(batch=2)
    for found in Search([model], SearchConfig(beam=2, max_length_offset=3)).run(source):
        assert len(found) >= 1


def test_attention_sums_to_one_over_the_source_and_matches_torch():
    model = tiny_model()
    source, target = tiny_pair(batch=2)
    weights = cross_attention(model, pad(source, right=2), target)
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(2, target.size(1)))
    assert (weights[:, :, -2:] == 0).all()
    torch.testing.assert_close(weights[:, :, :-2], cross_attention(model, source, target), rtol=1e-4, atol=1e-5)
    attention = model.decoder.layers[-1].cross_attention
    x, memory = torch.randn(2, 3, 16), torch.randn(2, 7, 16)
    projected = attention.project(memory)
    layout = model.encode(source).layout
    # Against torch's own attention: mixing unit vectors, each head gives back its weights.
    unit = torch.eye(7).expand(2, 2, 7, 7)
    query, (key, _) = attention.split(attention.q_proj(x)), attention.halves(projected)
    own = torch.nn.functional.scaled_dot_product_attention(query, key, unit)
    torch.testing.assert_close(attention.weights(x, projected, layout), own.mean(dim=1))


def test_hypotheses_carry_their_attention_where_asked():
    models = [tiny_model(seed=0), tiny_model(seed=1)]
    source, _ = tiny_pair(batch=2)
    found = Search(models, SearchConfig(beam=2, nbest=2, max_length_offset=5)).run(source, with_attention=True)
    for row, hypotheses in zip(source, found, strict=True):
        for hypothesis in hypotheses:
            target_in = torch.tensor([[2, *hypothesis.ids[:-1]]])
            expected = sum(cross_attention(model, row[None], target_in)[0] for model in models) / 2
            torch.testing.assert_close(hypothesis.attention, expected, rtol=1e-4, atol=1e-5)


def test_alignment_leaves_out_what_is_no_word():
    attention = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.2, 0.3], [0.0, 0.0, 1.0]])
    assert alignment_of(attention, [8, 9, 2], skipped=(2, 1)) == [(1, 0), (0, 1)]
    assert alignment_of(attention[:, 2:], [2], skipped=(2, 1)) == []


def test_scores_of_given_translations_in_chunks(monkeypatch):
    models = [tiny_model(seed=0), tiny_model(seed=1)]
    source, _ = tiny_pair(batch=2)
    target_in, target_out = pad_targets([[5, 6, 7, 2], [8, 2]], CPU)
    assert target_in.tolist() == [[2, 5, 6, 7], [2, 8, 1, 1]]
    monkeypatch.setattr("lamina.nn.heads.CHUNK_SIZE", 100)
    found = token_log_probs(models, (source, target_in), target_out)
    mean = sum(model.log_probs(source, target_in).exp() for model in models) / 2
    torch.testing.assert_close(found, mean.log().gather(2, target_out[:, :, None])[:, :, 0], rtol=1e-4, atol=1e-5)


def test_rows_come_back_with_their_places():
    model = tiny_model()
    rows = [np.array([5, 2]), np.array([5, 6, 7, 8, 2]), np.array([9, 9, 2])]
    assert length_batches(rows, 6, None) == [[1], [2, 0]]
    assert length_batches(rows, None, None) == [[1, 2, 0]]
    assert length_batches(rows, 2, None) == [[1], [2], [0]]
    assert length_batches([], None, 3) == []
    search = Search([model], SearchConfig(beam=2, max_length_offset=6))
    by_limit = [sorted((found.index, found.hypotheses[0].ids) for found in search_rows(search, rows, device="cpu", **limits))
                for limits in ({"batch_size": 1}, {"max_tokens": 1000}, {"batch_size": 2})]
    assert by_limit[0] == by_limit[1] == by_limit[2]
    assert [index for index, _ in by_limit[0]] == [0, 1, 2]


def test_memory_grows_and_is_never_left():
    cache = KeyValues(2, num_beams=2, num_heads=1, like=torch.zeros(4))
    state = StepState(layers=[cache], steps=torch.zeros(2, dtype=torch.long), num_beams=2, max_length=70, active=ALL_LAYERS)
    capacities = set()
    for step in range(70):
        turn = state.turn(state.begin(), torch.float32)
        keys, values = cache.append_(torch.cat([torch.full((2, 2, 4), float(step)), torch.zeros(2, 2, 4)], dim=2), turn)
        state.end()
        capacities.add(cache.data.size(1))
    assert capacities == {32, 64, 70}
    assert keys[0, 0, :, 0].tolist() == [float(step) for step in range(70) for _ in range(2)]
    assert not values.any()
    with pytest.raises(AssertionError, match="beyond the length"):
        state.begin()


def test_rows_are_selected_in_any_structure():
    model = tiny_model()
    source, _ = tiny_pair(batch=3)
    encoded = model.encode(source)
    kept = select_rows(encoded, torch.tensor([2, 0]))
    assert type(kept) is type(encoded)
    assert torch.equal(kept.output.final, encoded.output.final[[2, 0]])
    assert kept.output.states == encoded.output.states
    with pytest.raises(TypeError, match="no rows in int"):
        select_rows(3, torch.tensor([0]))


def test_a_model_in_training_is_not_searched():
    source, _ = tiny_pair(batch=1)
    with pytest.raises(AssertionError, match=r"call model\.eval\(\) first"):
        Search([tiny_model().train()], SearchConfig()).run(source)
