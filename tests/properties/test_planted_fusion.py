"""The analyses recover what is planted: models whose weights were set by hand give back those figures."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from lamina.analysis.embeddings import aligned_words, similarity, spectrum, token_tables
from lamina.analysis.fusion_weights import by_frequency, fusion_weights, gates, mixes_hard, source_attention
from lamina.analysis.hiding import Judge, masks_of, measure_masks
from lamina.data.batching import collate
from lamina.data.corpus import Example
from lamina.metrics.bleu import Bleu
from lamina.nn.stack import ActiveLayers
from lamina.parts.encoder_fusion import LayerWiseFusion, NoFusion, TransparentFusion
from lamina.parts.surface_fusion import AttendedFusion, HardFusion, MeanFusion, SoftFusion
from lamina.text.vocabulary import EOS, UNK
from tiny import FUSIONS, VOCABULARY_SIZE, batch_of, tiny_model


def batch(*pairs):
    """Rows of ids, without </s>."""
    examples = [Example(*(np.array([*side, EOS]) for side in pair)) for pair in pairs]
    return collate(examples, range(len(examples)))


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def is_untouched(model, before):
    hooks = [hook for part in model.modules() for hook in (*part._forward_hooks.values(), *part._forward_pre_hooks.values())]
    return not hooks and all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@torch.no_grad()
def make_identity_(layer):
    """A Pre-LN layer whose branches add nothing."""
    for part in (layer.attention.out_proj, layer.ffn.fc2):
        part.weight.zero_()
        part.bias.zero_()


# -- fusion weights

@pytest.mark.parametrize("is_fine_grained", [False, True])
def test_fusion_weights(is_fine_grained):
    model = tiny_model(num_layers=3, fusion=TransparentFusion(reads_embedding=True, reads_input=True,
                                                         is_fine_grained=is_fine_grained))
    planted = np.random.default_rng(0).dirichlet(np.ones(5), size=3)
    logits = torch.tensor(planted).log()
    if is_fine_grained:
        # Half of the channels read more of the first column than the mean says and less of the second, the others less.
        swing = torch.tensor(planted[:, :2].min(axis=1) / 2)
        shares = torch.tensor(planted)[:, :, None].repeat(1, 1, 16)
        shares[:, 0, :8] += swing[:, None]
        shares[:, 0, 8:] -= swing[:, None]
        shares[:, 1] -= shares[:, 0] - torch.tensor(planted[:, :1])
        logits = shares.log()
    with torch.no_grad():
        model.memory.weight.copy_(logits)
    found = fusion_weights(model)
    assert found.columns == ("embedding", "input", "layer 1", "layer 2", "layer 3")
    np.testing.assert_allclose(found.shares, planted, atol=1e-6)
    np.testing.assert_allclose(found.spread[:, 0], swing if is_fine_grained else 0.0, atol=1e-6)


def test_layer_wise_attention_reads_one_layer_each():
    found = fusion_weights(tiny_model(num_layers=3, fusion=LayerWiseFusion()))
    assert found.columns == ("layer 1", "layer 2", "layer 3")
    np.testing.assert_array_equal(found.shares, np.eye(3))
    found = fusion_weights(tiny_model(num_layers=2, fusion=LayerWiseFusion(layer_wise_reads=(0, -1))))
    assert found.columns == ("input", "layer 1", "layer 2")
    np.testing.assert_array_equal(found.shares, [[1, 0, 0], [0, 0, 1]])
    assert fusion_weights(tiny_model()) is None


# -- the gate

def gated_model():
    """A gate that reads the mean of the source embeddings' first channel, and nothing else."""
    model = tiny_model(surface=MeanFusion(has_ffn=False))
    with torch.no_grad():
        model.head.mix.gate_weight.zero_()
        model.head.mix.gate_weight[0, 16] = 1.0 / model.source_embedding.scale
    return model


def test_a_gate_that_depends_on_the_token():
    model = gated_model()
    frequent, rare = 5, 30
    table = model.source_embedding.table.weight
    with torch.no_grad():
        table[:, 0] = 0.0
        table[frequent, 0], table[rare, 0] = (math.log(0.9 / 0.1), math.log(0.2 / 0.8))
    before = state_of(model)
    # Each sentence says one word, so that what its source says is what stands at each target place.
    data = [batch(([frequent] * 3, [frequent] * 4), ([rare], [rare])), batch(([rare], [rare] * 3), ([UNK], [UNK]))]
    found = gates(model, data)
    assert found.tokens.tolist() == [*[5] * 4, EOS, 30, EOS, *[30] * 3, EOS, UNK, EOS]
    np.testing.assert_allclose(found.values[found.tokens == frequent], 0.9, atol=1e-6)
    np.testing.assert_allclose(found.values[found.tokens == rare], 0.2, atol=1e-6)
    counts = [0] * 4 + [2000] * 20 + [7] * (VOCABULARY_SIZE - 24)
    bins = by_frequency(found.tokens, found.values, counts)
    assert [(item.name, item.num_tokens) for item in bins] == [("1–9", 4), ("1000–9999", 4), ("<unk>", 1), ("</s>", 4)]
    np.testing.assert_allclose([item.mean for item in bins[:2]], [0.2, 0.9], atol=1e-6)
    np.testing.assert_allclose(bins[1].quantiles, 0.9, atol=1e-6)
    assert is_untouched(model, before)


def test_a_fixed_gate_is_the_same_everywhere():
    model = tiny_model(surface=AttendedFusion(mode=HardFusion(gate=0.8)))
    assert mixes_hard(model)
    found = gates(model, [batch_of(slice(None))])
    np.testing.assert_allclose(found.values, 0.8, atol=1e-6)
    assert not mixes_hard(tiny_model(surface=AttendedFusion(mode=SoftFusion())))
    assert not mixes_hard(tiny_model())


def test_frequency_bins_hold_what_they_say():
    tokens = np.array([4, 5, 6, 7, 8])
    bins = by_frequency(tokens, np.array([0.0, 0.1, 0.2, 0.3, 0.5]), [0, 0, 0, 0, 0, 9, 10, 99, 100])
    assert [(item.name, item.num_tokens) for item in bins] == [("not counted", 1), ("1–9", 1), ("10–99", 2),
                                                               ("100–999", 1)]
    assert bins[2].mean == pytest.approx(0.25)
    assert bins[2].quantiles == pytest.approx([0.205, 0.225, 0.25, 0.275, 0.295])


# -- masked layers

def judge(model, data, beam=0):
    return Judge(model, data, beam=beam, bleu=Bleu(is_tokenized=True), text_of=lambda ids, is_reference=False: " ".join(
        str(token) for token in ids if token > UNK))


@pytest.mark.parametrize("memory", [NoFusion(), LayerWiseFusion(layer_wise_reads=(-1, -1, -1))])
def test_only_the_layer_that_matters_is_missed(memory):
    model = tiny_model(num_layers=3, is_pre_norm=True, memory=memory)
    for number in (0, 2):
        make_identity_(model.encoder.layers[number])
    before, data = state_of(model), [batch_of(slice(None))]
    found = measure_masks(masks_of(model), judge(model, data, beam=2).quality)
    assert list(found.without) == ["layer 1", "layer 2", "layer 3"]
    change = {name: abs(quality.loss - found.whole.loss) for name, quality in found.without.items()}
    assert change["layer 1"] < 1e-6
    assert change["layer 3"] < 1e-6
    assert change["layer 2"] > 1e-3
    for name in ("layer 1", "layer 3"):
        assert found.without[name].bleu == found.whole.bleu
    assert is_untouched(model, before)
    skipped = model.log_probs(*data[0].inputs, active=ActiveLayers(encoder=(True, False, True)))
    assert found.without["layer 2"].loss == pytest.approx(loss_of(skipped, data[0]), abs=1e-5)


def loss_of(log_probs, data):
    return -log_probs.gather(2, data.target_out[:, :, None]).mean().item() / math.log(2)


def test_a_masked_column_leaves_its_share_to_the_others():
    model = tiny_model(num_layers=3, fusion=TransparentFusion(reads_embedding=True))
    with torch.no_grad():
        # All read layer 2, and a little of the embedding.
        model.memory.weight.copy_(torch.tensor([0.25, 1e-12, 0.75, 1e-12]).log().expand(3, -1))
    before, data = state_of(model), [batch_of(slice(None))]
    found = measure_masks(masks_of(model), judge(model, data).quality)
    assert list(found.without) == ["embedding", "layer 1", "layer 2", "layer 3"]
    assert found.whole.bleu is None
    for name in ("layer 1", "layer 3"):
        assert found.without[name].loss == pytest.approx(found.whole.loss, abs=1e-6)
    assert is_untouched(model, before)
    # Without layer 2 only the embedding is left, and the other way round.
    for name, left in (("layer 2", 0), ("embedding", 2)):
        with torch.no_grad():
            model.memory.weight.fill_(-1e9)[:, left] = 0.0
        alone = judge(model, data).quality().loss
        assert found.without[name].loss == pytest.approx(alone, abs=1e-5)
        assert found.without[name].loss != pytest.approx(found.whole.loss, abs=1e-4)


@pytest.mark.parametrize("mode", [HardFusion(gate=0.6), HardFusion(), SoftFusion(tau=0.5)])
def test_without_the_surface_the_decoder_speaks_alone(mode):
    model = tiny_model(surface=AttendedFusion(mode=mode))
    data = [batch_of(slice(None))]
    masks = masks_of(model)
    assert [mask.name for mask in masks] == ["layer 1", "layer 2", "surface"]
    found = measure_masks(masks[2:], judge(model, data).quality)
    with torch.no_grad():
        if isinstance(mode, SoftFusion):
            model.head.mix.tau = 0.0
        else:
            model.head.mix.gate_weight, model.head.mix.gate = None, 1.0
    (alone,) = [judge(model, data).quality()]
    assert found.without["surface"].loss == pytest.approx(alone.loss, abs=1e-5)


def test_a_mix_of_one_layer_cannot_be_masked():
    assert masks_of(tiny_model(num_layers=1, fusion=TransparentFusion())) == []


@pytest.mark.parametrize("fusion", FUSIONS)
def test_every_fusion_can_be_masked_and_is_left_as_it_was(fusion):
    model = tiny_model(**FUSIONS[fusion])
    before = state_of(model)
    found = measure_masks(masks_of(model), judge(model, [batch_of(slice(0, 4))], beam=1).quality)
    assert found.without
    assert all(math.isfinite(quality.loss) for quality in found.without.values())
    assert is_untouched(model, before)


def test_a_layer_that_says_when_to_stop_is_missed_in_length():
    model = planted_stop()
    data = [batch(([5, 6, 7, 8], [5, 5, 5, 5]))]
    found = measure_masks(masks_of(model), judge(model, data, beam=1).quality)
    assert found.whole.bleu.ratio == pytest.approx(1 / 4)
    assert found.without["layer 2"].bleu.ratio == pytest.approx(1 / 4)
    assert found.without["layer 1"].bleu.ratio > 1.0


@torch.no_grad()
def planted_stop():
    """Encoder layer 1 writes "stop" into a channel of the memory, which the decoder copies to its output."""
    model = tiny_model(num_layers=2, is_pre_norm=True, share_all=False)
    for stack in (model.encoder, model.decoder):
        for layer in stack.layers:
            make_identity_(layer)
    for layer in model.decoder.layers:
        layer.cross_attention.out_proj.weight.zero_()
        layer.cross_attention.out_proj.bias.zero_()
    channel = 0
    model.encoder.layers[0].ffn.fc2.bias[channel] = 50.0  # next to which the norm leaves little of the other channels
    cross = model.decoder.layers[-1].cross_attention
    cross.kv_proj.weight[16:] = torch.eye(16)
    cross.kv_proj.bias[16:] = 0.0
    cross.out_proj.weight[channel, channel] = 50.0
    cross.out_proj.bias[channel] = -140.0  # of sixteen channels of norm 4, only one that stands alone gets above
    for stack in (model.encoder, model.decoder):
        stack.norm.weight.fill_(1.0)
        stack.norm.bias.zero_()
    output = model.head.table.weight
    output.zero_()
    output[EOS, channel] = 1.0  # says stop where the channel is high
    output[5] = 0.1 * torch.ones(16)
    output[5, channel] = -1.0
    return model


# -- embeddings

def test_singular_values_of_a_low_rank_table():
    model = tiny_model()
    planted = np.array([8.0, 4.0, 2.0, 1.0])
    generator = torch.Generator().manual_seed(0)
    left = torch.linalg.qr(torch.randn(VOCABULARY_SIZE - 1, 4, generator=generator).double())[0]
    right = torch.linalg.qr(torch.randn(16, 4, generator=generator).double())[0]
    low_rank = left @ torch.tensor(planted).diag() @ right.T
    ((uses, table),) = token_tables(model).items()
    assert uses == "source, target, output"
    with torch.no_grad():
        table.weight[table.pad_id] = 1000.0  # must not count
        table.weight[torch.arange(VOCABULARY_SIZE) != table.pad_id] = low_rank.float()
    found = spectrum(table)
    np.testing.assert_allclose(found.values[:4], planted, rtol=1e-5)
    assert found.values[4:].max() < 1e-5
    np.testing.assert_allclose(found.normalised[:4], planted / 8.0, rtol=1e-5)
    np.testing.assert_allclose(found.variance[:4], np.cumsum(planted**2) / 85.0, rtol=1e-5)
    shares = planted / 15.0
    assert found.effective_rank == pytest.approx(np.exp(-np.sum(shares * np.log(shares))), rel=1e-3)


def test_effective_rank_of_equal_values_is_their_number():
    model = tiny_model(share_all=False)
    assert list(token_tables(model)) == ["source", "target", "output"]
    with torch.no_grad():
        model.source_embedding.table.weight.copy_(torch.eye(VOCABULARY_SIZE)[:, :16] + torch.eye(VOCABULARY_SIZE).roll(20, 0)[
            :, :16])
    assert spectrum(model.source_embedding.table).effective_rank == pytest.approx(16.0, rel=0.02)


@torch.no_grad()
def make_diagonal_(attention):
    """Queries look for keys like themselves, sharply."""
    for projection in (attention.q_proj, attention.k_proj if hasattr(attention, "k_proj") else attention.kv_proj):
        projection.weight.zero_()
        projection.bias.zero_()
        projection.weight[:16] = 6.0 * torch.eye(16)


@torch.no_grad()
def diagonal_model(**changes):
    """Target place t looks at source place t: words weigh next to nothing beside positions, and layers are the identity."""
    model = tiny_model(num_layers=1, is_pre_norm=True, share_all=False, **changes)
    for stack in (model.encoder, model.decoder):
        make_identity_(stack.layers[0])
        stack.norm.weight.fill_(1.0)
        stack.norm.bias.zero_()
    for norm in (part for part in model.decoder.layers[0].modules() if isinstance(part, nn.LayerNorm)):
        norm.weight.fill_(1.0)
        norm.bias.zero_()
    for embedding in (model.source_embedding, model.target_embedding):
        embedding.table.weight.mul_(1e-3)
    cross = model.decoder.layers[0].cross_attention
    cross.num_heads = 1
    make_diagonal_(cross)
    return model


def test_aligned_embeddings_that_are_equal():
    model = diagonal_model()
    source, target = (embedding.table.weight for embedding in (model.source_embedding, model.target_embedding))
    with torch.no_grad():
        target[4:] = 5.0 * source[4:].flip(0)  # word 39 translates 4, 38 translates 5, ...
    words = np.random.default_rng(0).integers(4, VOCABULARY_SIZE, (6, 5))
    data = [batch(*((row.tolist(), (43 - row).tolist()) for row in words))]
    data.append(batch(([UNK, 7], [UNK, 36])))
    before = state_of(model)
    pairs = aligned_words(model, data)
    assert sorted(map(tuple, pairs.tolist())) == sorted([(word, 43 - word) for word in words.flatten().tolist()] + [(7, 36)])
    found = similarity(model, pairs, seed=1)
    np.testing.assert_allclose(found.aligned, 1.0, atol=1e-6)
    assert len(found.random) == len(found.aligned)
    assert abs(found.random.mean()) < 0.4
    assert not found.is_same_symbol.any()
    np.testing.assert_array_equal(found.random, similarity(model, pairs, seed=1).random)
    assert (found.random != similarity(model, pairs, seed=2).random).any()
    assert is_untouched(model, before)


def test_a_symbol_aligned_with_itself_is_told_apart():
    model = tiny_model()
    found = similarity(model, np.array([[5, 5], [5, 6]]), seed=1)
    assert found.is_same_symbol.tolist() == [True, False]
    assert found.aligned[0] == pytest.approx(1.0)


# -- attention of a sentence

def test_attention_of_the_head_and_of_the_last_layer():
    source, target_in = torch.tensor([[5, 9, 13, 7, EOS]]), torch.tensor([[EOS, 20, 21, 22, 23]])
    model = diagonal_model(surface=AttendedFusion())
    with torch.no_grad():
        make_diagonal_(model.head.surface.attention)
        # The last layer looks elsewhere: at nothing in particular.
        model.decoder.layers[0].cross_attention.q_proj.weight.zero_()
    found = source_attention(model, source, target_in)
    assert found.is_of_head
    np.testing.assert_allclose(found.weights, np.eye(5), atol=0.05)
    np.testing.assert_allclose(source_attention(diagonal_model(), source, target_in).weights, np.eye(5), atol=0.05)
    pooled = source_attention(diagonal_model(surface=MeanFusion()), source, target_in)
    assert not pooled.is_of_head
    np.testing.assert_allclose(pooled.weights, np.eye(5), atol=0.05)
