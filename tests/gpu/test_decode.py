"""Search on a GPU."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

import lamina
from lamina.cli import main
from lamina.config.search_options import SearchConfig
from lamina.cuda_graphs.recorder import Recorder
from lamina.decode import beam_step, scheduler
from lamina.decode.batched_search import search_rows
from lamina.decode.search import Search
from lamina.models.build import build_model
from lamina.nn import step_attention
from lamina.nn.attention import CrossAttention, SelfAttention
from lamina.nn.cache import KeyValues, StepState
from lamina.nn.layout import HAS_TRITON, Layout
from lamina.nn.stack import ALL_LAYERS, ActiveLayers
from lamina.text.vocabulary import EOS, Vocabulary
from tiny import (
    FUSIONS,
    TINY_FLAGS,
    VOCABULARY_SIZE,
    make_data,
    pad,
    tiny_config,
    tiny_language_model,
    tiny_model,
    tiny_pair,
)

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

CONFIGURATIONS = {
    "greedy": SearchConfig(beam=1, max_length_offset=40),
    "beam": SearchConfig(beam=4, nbest=4, max_length_offset=40),
    "penalties": SearchConfig(beam=3, nbest=3, length_penalty=0.4, unk_penalty=1.5, min_length=5, max_length_offset=14),
    "own length": SearchConfig(beam=5, nbest=5, max_length_factor=1.5, max_length_offset=2),
    "match length": SearchConfig(beam=3, nbest=3, match_source_length=True),
    "diverse": SearchConfig(beam=4, nbest=4, diverse_beam_groups=2, max_length_offset=14),
    "no repeats": SearchConfig(beam=4, nbest=4, no_repeat_ngram=2, max_length_offset=14),
    # Some are finished far beyond the steps that the last ones take.
    "no repeats, long": SearchConfig(beam=2, nbest=2, no_repeat_ngram=2, max_length_factor=4.0, max_length_offset=0),
    "sampling": SearchConfig(beam=3, nbest=3, sampling=True, sampling_topp=0.8, max_length_offset=14),
    "topk": SearchConfig(beam=3, nbest=3, sampling=True, sampling_topk=4, max_length_offset=14),
}


@pytest.fixture
def step_kernels(monkeypatch):
    monkeypatch.setenv(step_attention.SWITCH, "1")


def batch():
    source, _ = tiny_pair(batch=6)
    return torch.cat([pad(source[:3, 2:], right=2), source[3:]])


def sources(number=40, seed=0):
    generator = np.random.default_rng(seed)
    return [np.append(generator.integers(4, VOCABULARY_SIZE, size), EOS) for size in generator.integers(1, 20, number)]


def found_by(search, rows, device, num_slots=8, prefixes=None):
    return dict(search.each(rows, prefixes, num_slots=num_slots, device=torch.device(device)))


def check_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for number, expected in theirs.items():
        assert [hypothesis.ids for hypothesis in ours[number]] == [hypothesis.ids for hypothesis in expected]
        assert [hypothesis.score for hypothesis in ours[number]] == pytest.approx(
            [hypothesis.score for hypothesis in expected], abs=1e-4)


@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_the_gpu_finds_what_the_processor_finds(config):
    model, source = tiny_model(seed=3, share_all=False), batch()
    ours = Search([model], config).run(source, with_attention=True)
    theirs = Search([model.cuda()], config).run(source.cuda(), with_attention=True)
    check_same(dict(enumerate(theirs)), dict(enumerate(ours)))


@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_recorded_steps_find_what_called_ones_find(config):
    model, rows = tiny_model(seed=3, share_all=False), sources()
    expected = found_by(Search([model], config), rows, "cpu")
    model.cuda()
    check_same(found_by(Search([model], replace(config, cuda_graphs=False)), rows, "cuda"), expected)
    check_same(found_by(Search([model], config), rows, "cuda"), expected)


@needs_triton
@pytest.mark.parametrize("beam", [1, 5, 16])
@pytest.mark.parametrize("vocab", [999, 10_000])
def test_fused_choices_are_those_of_torch(beam, vocab, step_kernels, monkeypatch):
    torch.manual_seed(3)
    # In float32: of equal scores, which half precision has many of, torch takes any.
    model = build_model(tiny_config(share_all=False), vocab, vocab).eval().cuda()
    config = SearchConfig(beam=beam, nbest=beam, max_length_offset=40)
    calls, real = [], beam_step.choose_
    monkeypatch.setattr(beam_step, "choose_", lambda *given: calls.append(given) or real(*given))
    ours = found_by(Search([model], config), sources(), "cuda")
    assert calls
    monkeypatch.setattr(beam_step, "can_fuse", lambda *_: False)
    theirs = found_by(Search([model], config), sources(), "cuda")
    assert {key: [(own.ids, own.token_scores) for own in found] for key, found in ours.items()} == {
        key: [(own.ids, own.token_scores) for own in found] for key, found in theirs.items()}


TOLERANCES = {torch.float32: 2e-6, torch.float16: 3e-3, torch.bfloat16: 2e-2}


@needs_triton
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("num_heads", "channels"), [(4, 32), (3, 40), (2, 64), (4, 128)])
@pytest.mark.parametrize("num_beams", [1, 5])
def test_a_beams_past_as_torch_attends_to_it(num_beams, num_heads, channels, dtype, step_kernels, monkeypatch):
    """70 steps of beams that change their places: two blocks of the past and more."""
    torch.manual_seed(0)
    dim, batch = num_heads * channels, 7
    attention = SelfAttention(dim, num_heads, 0.0).eval().cuda()
    kinds = {True: deepcopy(attention).to(dtype), False: attention}
    states = {}
    for has_kernel, own in kinds.items():
        past = KeyValues(batch, num_beams, num_heads, own.in_proj.weight.new_empty(0, dim))
        states[has_kernel] = StepState(layers=[past], steps=torch.zeros(batch, dtype=torch.long, device="cuda"),
                                       num_beams=num_beams, max_length=80, active=ALL_LAYERS)
        states[has_kernel].differ_()
    with torch.inference_mode():
        for _ in range(70):
            x, found = torch.randn(batch, num_beams, dim, device="cuda").to(dtype), []
            parents = torch.randint(num_beams, (batch, num_beams), device="cuda")
            for has_kernel, state in states.items():
                with monkeypatch.context() as patch:
                    if not has_kernel:
                        patch.setattr(step_attention, "suits", lambda *_: False)
                    own = x.to(kinds[has_kernel].in_proj.weight.dtype)
                    found.append(kinds[has_kernel].step(own, state.layers[0], state.turn(state.begin(), own.dtype)))
                state.end()
                state.reorder_(parents)
            torch.testing.assert_close(found[0].float(), found[1], rtol=0, atol=TOLERANCES[dtype])


@needs_triton
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("num_heads", "channels"), [(4, 32), (3, 40), (2, 64), (4, 128)])
@pytest.mark.parametrize("num_beams", [1, 5, 20])
@pytest.mark.parametrize("size", [9, 70])
def test_a_source_as_torch_attends_to_it(size, num_beams, num_heads, channels, dtype, step_kernels, monkeypatch):
    torch.manual_seed(0)
    dim, batch = num_heads * channels, 5
    attention = CrossAttention(dim, dim, num_heads, 0.0).eval().cuda()
    half = deepcopy(attention).to(dtype)
    ids = torch.full((batch, size), 9, device="cuda")
    ids[1, 4:], ids[2, :-3] = 1, 1
    layout = Layout.of_ids(ids, 1)
    x, memory = (torch.randn(batch, number, dim, device="cuda").to(dtype) for number in (num_beams, size))
    with torch.inference_mode():
        halves = [part.contiguous() for part in half.halves(half.project(memory))]
        found = half.step(x, halves, layout.as_bias(dtype))
        query = half.q_proj(x)
        wide = step_attention.read_source(query, *halves, layout.as_bias(dtype).may_attend)
        narrow = step_attention.read_source(query[1:2], *(part[1:2, :, :4].contiguous() for part in halves),
                                            Layout.of_ids(ids[1:2, :4], 1).as_bias(dtype).may_attend)
        monkeypatch.setattr(step_attention, "suits", lambda *_: False)
        expected = attention.step(x.float(), attention.halves(attention.project(memory.float())), layout.as_bias(torch.float32))
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=TOLERANCES[dtype])
    assert torch.equal(wide[1:2], narrow)  # neither its neighbours nor their widths matter


@needs_triton
@pytest.mark.parametrize("config", CONFIGURATIONS.values(), ids=CONFIGURATIONS.keys())
def test_searches_with_the_kernels_of_a_step(config, step_kernels):
    test_recorded_steps_find_what_called_ones_find(config)


@needs_triton
@pytest.mark.parametrize("changes", FUSIONS.values(), ids=FUSIONS.keys())
def test_fusion_with_the_kernels_of_a_step(changes, step_kernels):
    test_recorded_fusion(changes)


@needs_triton
@pytest.mark.parametrize("beam", [1, 3])
def test_prompts_with_the_kernels_of_a_step(beam, step_kernels):
    test_recorded_prompts(beam)


@needs_triton
def test_ensembles_and_prefixes_with_the_kernels_of_a_step(step_kernels):
    test_recorded_ensembles_prefixes_and_missing_layers()


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_the_kernels_of_a_step(dtype, step_kernels):
    test_half_precision(dtype)


@needs_triton
def test_neighbours_do_not_matter_to_the_kernels_of_a_step(step_kernels):
    model, rows = tiny_model(seed=3, share_all=False).cuda(), sources()
    found = found_by(Search([model], CONFIGURATIONS["own length"]), rows, "cuda")
    turned = found_by(Search([model], CONFIGURATIONS["own length"]), rows[::-1], "cuda")
    check_same({len(rows) - 1 - number: hypotheses for number, hypotheses in turned.items()}, found)


def test_steps_and_encoder_passes_are_captured(monkeypatch):
    replays = []
    original = Recorder.__call__

    def watch(self, key, function):
        original(self, key, function)
        replays.append(key in self._replays)

    monkeypatch.setattr(Recorder, "__call__", watch)
    model = tiny_model(seed=3, share_all=False).cuda()
    found_by(Search([model], CONFIGURATIONS["beam"]), sources(), "cuda")
    assert sum(replays) > 0.8 * len(replays)


@pytest.mark.parametrize("changes", FUSIONS.values(), ids=FUSIONS.keys())
def test_recorded_fusion(changes):
    model, rows = tiny_model(seed=1, **changes), sources(16)
    config = SearchConfig(beam=3, nbest=3, max_length_offset=14)
    expected = found_by(Search([model], config), rows, "cpu", 4)
    check_same(found_by(Search([model.cuda()], config), rows, "cuda", 4), expected)


def test_recorded_ensembles_prefixes_and_missing_layers():
    models, rows = [tiny_model(seed=seed, share_all=False) for seed in (3, 4)], sources(16)
    prefixes = [np.array([7, 8, 9])[: number % 4] for number in range(16)]
    config = SearchConfig(beam=3, nbest=3, max_length_offset=14)
    active = ActiveLayers(encoder=(True, False), decoder=(False, True))
    for own, layers in ((models, ActiveLayers()), (models[:1], active)):
        expected = found_by(Search([model.cpu() for model in own], config, layers), rows, "cpu", 4, prefixes)
        check_same(found_by(Search([model.cuda() for model in own], config, layers), rows, "cuda", 4, prefixes), expected)


@pytest.mark.parametrize("beam", [1, 3])
def test_recorded_prompts(beam):
    model, rows = tiny_language_model(seed=2), sources(16)
    prompts = [row[:-1] for row in rows]
    config = SearchConfig(beam=beam, nbest=beam, max_length_offset=12)
    expected = found_by(Search([model], config), rows, "cpu", 4, prompts)
    check_same(found_by(Search([model.cuda()], config), rows, "cuda", 4, prompts), expected)


def test_recorded_forbidden_words(tmp_path):
    vocabulary = Vocabulary([f"w{number}" for number in range(4, VOCABULARY_SIZE)], [1] * (VOCABULARY_SIZE - 4))
    model, rows = tiny_model(seed=3, share_all=False), sources()
    free = found_by(Search([model], CONFIGURATIONS["beam"]), rows, "cpu")
    phrases = [free[0][0].ids[:1], free[1][0].ids[1:3], free[2][0].ids[1:4]]
    path = tmp_path / "forbidden"
    lines = [" ".join(vocabulary.symbols[token] for token in phrase if token != EOS) for phrase in phrases]
    path.write_text("\n".join(lines), encoding="utf-8")
    config = SearchConfig(beam=4, nbest=4, max_length_offset=40, forbidden_words=str(path))
    expected = found_by(Search([model], config, vocabulary=vocabulary), rows, "cpu")
    check_same(found_by(Search([model.cuda()], config, vocabulary=vocabulary), rows, "cuda"), expected)


def test_lengths_beyond_the_first_recording(monkeypatch):
    monkeypatch.setattr(scheduler, "SHORTEST_LENGTH", 8)
    model, rows = tiny_model(seed=3, share_all=False), sources(12)
    config = SearchConfig(beam=2, nbest=2, max_length_factor=3.0, max_length_offset=0)
    expected = found_by(Search([model], config), rows, "cpu", 3)
    check_same(found_by(Search([model.cuda()], config), rows, "cuda", 3), expected)


def test_rows_of_very_different_widths():
    model = tiny_model(seed=3, share_all=False, max_source_positions=400)
    rows = [*sources(10), np.append(np.full(300, 7), EOS)]
    search, found = Search([model], SearchConfig(beam=2, nbest=2, max_length_offset=8)), {}
    for device in ("cpu", "cuda"):
        model.to(device)
        found[device] = {own.index: own.hypotheses for own in search_rows(search, rows, device=device, batch_size=4)}
    check_same(found["cuda"], found["cpu"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """Rounding may choose another of two sentences that are as good, but not misjudge the one it chose."""
    model, rows = tiny_model(seed=3, share_all=False), sources()
    found = found_by(Search([deepcopy(model).cuda().to(dtype)], CONFIGURATIONS["own length"]), rows, "cuda")
    assert found.keys() == set(range(len(rows)))
    tolerance = 0.005 if dtype == torch.float16 else 0.04
    for number, (best, *_) in found.items():
        ids = torch.tensor([EOS, *best.ids])
        log_probs = model.log_probs(torch.from_numpy(rows[number])[None], ids[None, :-1])[0]
        assert best.score == pytest.approx(log_probs.gather(1, ids[1:, None]).mean().item(), abs=tolerance)


@pytest.mark.parametrize("order", ["ordered", "unordered"])
def test_constraints_hold_on_the_gpu(order):
    model, source = tiny_model(seed=3, share_all=False), batch()
    config = SearchConfig(beam=6, nbest=3, max_length_offset=14, constraint_order=order)
    phrases = [[[5, 6], [7]], [], [[8]], [[9, 10, 11]], [[5], [5]], []]
    ours = Search([model], config).run(source, constraints=phrases)
    theirs = Search([model.cuda()], config).run(source.cuda(), constraints=phrases)
    check_same(dict(enumerate(theirs)), dict(enumerate(ours)))


def test_generate_says_the_same_on_both(tmp_path, capsys):
    data = make_data(tmp_path, num_lines=60)
    # Long enough to know the lines by heart: a model that wavers says something else with each rounding.
    assert main(["train", str(data), *TINY_FLAGS, "--max-tokens", "200", "--max-epoch", "200", "--lr", "0.02", "--cpu",
                 "--log-format", "none", "--disable-validation", "--no-epoch-checkpoints", "--save-dir",
                 str(tmp_path / "out")]) == 0
    path = str(tmp_path / "out" / "checkpoint_last.pt")
    for dtype, expected in ((None, torch.float16), ("fp32", torch.float32), ("bf16", torch.bfloat16)):
        assert next(lamina.load(path, dtype=dtype).models[0].parameters()).dtype is expected
    texts = {}
    for flags in (("--cpu",), ("--fp32",), (), ("--bf16",), ("--no-cuda-graphs", "--fp32")):
        capsys.readouterr()
        assert main(["generate", str(data), "--path", path, "--gen-subset", "train", "--batch-size", "8",
                     *flags]) == 0
        texts[flags] = [line.split("\t")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("H-")]
    assert texts[("--cpu",)] == texts[("--fp32",)] == texts[("--no-cuda-graphs", "--fp32")]
    for flags in ((), ("--bf16",)):
        assert sum(one == other for one, other in zip(texts[flags], texts[("--cpu",)], strict=True)) >= 54
