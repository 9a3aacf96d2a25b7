"""Search on a GPU."""

import pytest
import torch

from lamina.config.decode import SearchConfig
from lamina.decode.beam import Search
from tiny import pad, tiny_model, tiny_pair

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CONFIGURATIONS = {
    "greedy": SearchConfig(beam=1, max_length_offset=40),
    "beam": SearchConfig(beam=4, nbest=4, max_length_offset=40),
    "diverse": SearchConfig(beam=4, nbest=4, diverse_beam_groups=2, max_length_offset=14),
    "no repeats": SearchConfig(beam=4, nbest=4, no_repeat_ngram=2, max_length_offset=14),
    "sampling": SearchConfig(beam=3, nbest=3, sampling=True, sampling_topp=0.8, max_length_offset=14),
}


def batch():
    source, _ = tiny_pair(batch=6)
    return torch.cat([pad(source[:3, 2:], right=2), source[3:]])


@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_the_gpu_finds_what_the_processor_finds(config):
    model, source = tiny_model(seed=3, share_all=False), batch()
    ours = Search([model], config).run(source, with_attention=True)
    theirs = Search([model.cuda()], config).run(source.cuda(), with_attention=True)
    for one, other in zip(ours, theirs, strict=True):
        assert [hypothesis.ids for hypothesis in one] == [hypothesis.ids for hypothesis in other]
        assert [hypothesis.score for hypothesis in one] == pytest.approx([hypothesis.score for hypothesis in other], abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    model = tiny_model(seed=3, share_all=False).cuda().to(dtype)
    found = Search([model], CONFIGURATIONS["beam"]).run(batch().cuda())
    assert all(len(hypotheses) == 4 and all(hypothesis.score > -torch.inf for hypothesis in hypotheses) for hypotheses in found)


@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_constraints_hold_on_the_gpu(order):
    model, source = tiny_model(seed=3, share_all=False), batch()
    config = SearchConfig(beam=6, nbest=3, max_length_offset=14, constraint_order=order)
    phrases = [[[5, 6], [7]], [], [[8]], [[9, 10, 11]], [[5], [5]], []]
    ours = Search([model], config).run(source, constraints=phrases)
    theirs = Search([model.cuda()], config).run(source.cuda(), constraints=phrases)
    for one, other in zip(ours, theirs, strict=True):
        assert [hypothesis.ids for hypothesis in one] == [hypothesis.ids for hypothesis in other]
