"""Laws that hold for every model that build_model builds."""

import pytest
import torch

from lamina.config.search_options import SearchConfig
from lamina.decode.search import Search
from lamina.nn.heads import normalise
from lamina.parts.residuals import Admin, AdminClosedForm, DeepNet, ReZeroInit, ReZeroPostNorm
from tiny import FUSIONS, MIXINGS, pad, tiny_model, tiny_pair

CONFIGURATIONS = {
    "post": {},
    "pre": {"is_pre_norm": True},
    "norm": {"has_norm": True},
    "no positions": {"has_positions": False},
    "unscaled": {"is_scaled": False},
    "untied": {"share_all": False},
    "decoder tied": {"share_all": False, "share_decoder": True},
    "admin": {"init": Admin()},
    "closed form": {"init": AdminClosedForm()},
    "rezero": {"init": ReZeroInit()},
    "rezero pre": {"init": ReZeroPostNorm(), "is_pre_norm": True},
    "deepnet": {"init": DeepNet()},
    **FUSIONS,
    **{f"pre {name}": {"is_pre_norm": True, **fusion} for name, fusion in FUSIONS.items()},
    "untied both": {"share_all": False, **FUSIONS["both"]},
    **{name: {"num_layers": 3, **mixing} for name, mixing in MIXINGS.items()},
    **{f"{name} and both": {"num_layers": 3, **mixing, **FUSIONS["both"]} for name, mixing in MIXINGS.items()},
}


@pytest.fixture(params=CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def model(request):
    return tiny_model(**request.param)


def test_future_tokens_cannot_change_past_scores(model):
    source, target = tiny_pair()
    changed = target.clone()
    changed[:, 4:] = 5
    before, after = model.log_probs(source, target), model.log_probs(source, changed)
    torch.testing.assert_close(before[:, :4], after[:, :4], rtol=0, atol=0)
    assert not torch.equal(before[:, 4:], after[:, 4:])


@pytest.mark.parametrize(("left", "right"), [(3, 0), (0, 3)])
def test_padding_the_source_cannot_change_scores(model, left, right):
    source, target = tiny_pair()
    plain, padded = model.log_probs(source, target), model.log_probs(pad(source, left, right), target)
    torch.testing.assert_close(padded, plain, rtol=1e-5, atol=1e-5)


def test_padding_the_target_cannot_change_scores(model):
    source, target = tiny_pair()
    padded = model.log_probs(source, pad(target, right=3))
    torch.testing.assert_close(padded[:, : target.size(1)], model.log_probs(source, target), rtol=1e-5, atol=1e-5)


def test_rows_do_not_see_each_other(model):
    source, target = tiny_pair()
    alone = model.log_probs(source[:1], target[:1])
    torch.testing.assert_close(model.log_probs(source, target)[:1], alone, rtol=1e-5, atol=1e-5)


def test_stepwise_decoding_matches_full_forward(model):
    source, target = tiny_pair()
    source = torch.cat([pad(source[:1, 2:], right=2), source[1:]])
    state = model.start(source, target.size(1))
    steps = [model.step(target[:, position], state) for position in range(target.size(1))]
    # float32 with another order of sums on each path
    torch.testing.assert_close(torch.stack(steps, dim=1), model.log_probs(source, target), rtol=1e-5, atol=1e-5)


def test_log_probs_are_normalised_but_for_hard_fusion(model):
    terms, log_probs = model(*tiny_pair()), model.log_probs(*tiny_pair())
    sums = log_probs.exp().sum(dim=-1)
    if len(terms) > 1:
        # A weighted geometric mean lies below the weighted mean, so its sum falls short of 1.
        assert (sums < 0.999).all()
        sums = normalise(log_probs, terms).exp().sum(dim=-1)
    torch.testing.assert_close(sums, torch.ones_like(sums), rtol=1e-5, atol=0)


def test_same_seed_same_bits():
    one, other = (tiny_model(seed=5).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def translate_greedily(model, source):
    return [found[0].ids for found in Search([model], SearchConfig(beam=1, max_length_offset=20)).run(source)]


def test_greedy_takes_the_best_token_of_the_full_forward(model):
    source, _ = tiny_pair()
    translations = translate_greedily(model, source)
    for row, ids in zip(source, translations, strict=True):
        scores = model.log_probs(row[None], torch.tensor([[2, *ids[:-1]]]))[0]
        scores[:, 1] = -torch.inf
        scores[0, 2] = -torch.inf
        assert scores.argmax(dim=1).tolist()[:20] == ids[:20]
        assert ids[-1] == 2


def test_greedy_does_not_depend_on_the_batch(model):
    source, _ = tiny_pair(batch=4)
    together = translate_greedily(model, pad(source, right=5))
    assert together == [translate_greedily(model, row[None])[0] for row in source]
