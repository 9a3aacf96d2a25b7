"""What the softmax reads."""

import pytest
import torch

from golden_files import read_tensors
from lamina.config.presets import transformer_surface_fusion
from lamina.decode.scoring import token_log_probs
from lamina.models.build import build_model
from lamina.nn.embedding import InputEmbedding, TokenTable, WordDropout
from lamina.nn.heads import HardMix, SoftMix, log_probs, normalise, sharpen
from lamina.nn.layout import Layout
from lamina.nn.positions import SinusoidalPositions
from lamina.parts.surface_fusion import AttendedFusion, HardFusion, MaxFusion, MeanFusion, PostnormFusion, SoftFusion
from tiny import VOCABULARY_SIZE, tiny_model, tiny_pair


def parameters(**changes):
    return {name.removeprefix("head.") for name, _ in tiny_model(**changes).named_parameters() if name.startswith("head.")}


def test_only_what_a_configuration_uses_exists():
    ffn = {f"ffn.{name}.{kind}" for name in ("fc1", "fc2") for kind in ("weight", "bias")}
    attention = {f"surface.attention.{name}_proj.{kind}" for name in ("q", "k", "v", "out") for kind in ("weight", "bias")}
    linears = {"target_linear.weight", "source_linear.weight"}
    assert parameters(surface=AttendedFusion(mode=HardFusion(gate=0.8))) == ffn | attention
    assert parameters(surface=AttendedFusion(has_ffn=False)) == attention | {"mix.gate_weight"}
    assert parameters(surface=MeanFusion(mode=SoftFusion(), has_linear=True)) == ffn | linears
    assert parameters(surface=MaxFusion(mode=PostnormFusion(), has_ffn=False)) == set()


def test_the_preset_is_the_reference_less_its_dead_parameters():
    """The published setting, 32k joint vocabulary: base Transformer, attention and feed-forward of the fusion. Of the fork's
    parameters, two matrices of 512 x 512 and a gate of 1,024 are never read there: 525,312."""
    dim, ffn_dim, vocab = 512, 2048, 32_000
    attention, ffn, norm = 4 * dim**2 + 4 * dim, 2 * dim * ffn_dim + dim + ffn_dim, 2 * dim
    plain = vocab * dim + 6 * (attention + ffn + 2 * norm) + 6 * (2 * attention + ffn + 3 * norm)
    reference = plain + attention + ffn + 525_312
    config = transformer_surface_fusion()
    with torch.device("meta"):
        model = build_model(type(config)(**{**vars(config), "embedding": type(config.embedding)(share_all=True)}), vocab, vocab)
    assert sum(parameter.numel() for parameter in model.parameters()) == reference - 525_312


def test_the_surface_shapes_embeddings_and_steers_no_stack():
    model = tiny_model(share_all=False, surface=AttendedFusion(mode=HardFusion(gate=0.5), has_ffn=False))
    terms = model(*tiny_pair())
    log_probs(terms[1:], model.output_weight).sum().backward()
    grads = {name for name, parameter in model.named_parameters() if parameter.grad is not None and parameter.grad.any()}
    assert "source_embedding.table.weight" in grads
    assert not any(name.startswith(("encoder.", "decoder.", "target_embedding")) for name in grads)


def test_soft_and_postnorm_are_one_function():
    models = [tiny_model(surface=AttendedFusion(mode=mode(tau=0.6))) for mode in (SoftFusion, PostnormFusion)]
    one, other = (model.log_probs(*tiny_pair()) for model in models)
    assert torch.equal(one, other)
    model, weight = models[0], models[0].output_weight
    [term] = model(*tiny_pair())
    decoder = tiny_model(surface=AttendedFusion(mode=HardFusion(gate=0.5)))
    decoder.load_state_dict(model.state_dict())
    target, source = decoder(*tiny_pair())
    target = log_probs([target._replace(weight=1.0)], weight)
    source_scores = torch.nn.functional.linear(source.features, weight)
    torch.testing.assert_close(log_probs([term], weight), (target + (0.6 * source_scores).log_softmax(-1)).log_softmax(-1))


def test_a_learned_gate_lies_between_its_ends_and_differs_by_token():
    target, source = tiny_model(surface=AttendedFusion())(*tiny_pair())
    assert ((target.weight > 0) & (target.weight < 1)).all()
    assert target.weight.unique().numel() > 1
    torch.testing.assert_close(target.weight + source.weight, torch.ones_like(target.weight))


def test_in_training_a_share_of_the_tokens_reads_the_decoder_alone():
    target, source = torch.full((4, 1000, 2), 3.0), torch.ones(4, 1000, 2)
    mix = SoftMix(0.5, 0.3)
    torch.manual_seed(1)
    [term] = mix(target, source)
    is_alone = term.features.eq(3.0)
    assert is_alone.logical_or(term.features.eq(3.5)).all()
    assert is_alone[..., 0].equal(is_alone[..., 1])
    assert is_alone.float().mean() == pytest.approx(0.3, abs=0.03)
    assert mix.eval()(target, source)[0].features.eq(3.5).all()
    gate = HardMix(0.0, 2, 0.3)
    gate.initialise_()
    own, other = gate(target, source)
    assert own.weight.eq(1.0).float().mean() == pytest.approx(0.3, abs=0.03)
    assert own.weight[other.weight > 0].unique().numel() == 1  # the gate of these features, the same for each token
    assert torch.equal(own.weight + other.weight, torch.ones(4, 1000, 1))
    assert not gate.eval()(target, source)[0].weight.eq(1.0).any()


@pytest.mark.parametrize(("mode", "drawn"), [(SoftFusion(), SoftFusion(dropout=0.4)), (HardFusion(), HardFusion(dropout=0.4))])
def test_a_token_has_the_fused_loss_or_the_decoders_own(mode, drawn):
    torch.manual_seed(3)
    fused, model = (tiny_model(surface=AttendedFusion(mode=one)).train() for one in (mode, drawn))
    model.load_state_dict(fused.state_dict())
    source, target = tiny_pair()

    def scores(terms):
        return log_probs(terms, model.output_weight)

    whole = scores(fused(source, target))
    if isinstance(mode, HardFusion):
        own = scores([fused(source, target)[0]._replace(weight=1.0)])
    else:
        alone = tiny_model(surface=AttendedFusion(mode=SoftFusion(tau=0.0))).train()
        alone.load_state_dict(fused.state_dict())
        own = scores(alone(source, target))
    shares = []
    for _ in range(40):
        found = scores(model(source, target))
        is_own, is_whole = ((found - part).abs().amax(dim=-1) < 1e-5 for part in (own, whole))
        assert is_own.logical_xor(is_whole).all()
        shares.append(is_own.float().mean())
    assert sum(shares) / 40 == pytest.approx(0.4, abs=0.08)
    assert torch.equal(scores(model.eval()(source, target)), scores(fused.eval()(source, target)))


def test_pooling_passes_over_symbols_and_padding():
    model = tiny_model(surface=MeanFusion(mode=SoftFusion(), has_ffn=False))
    source = torch.tensor([[1, 1, 7, 9, 3, 2]])
    pooled = model.head.start(*model.encode(source))
    own = model.source_embedding.table.weight[[7, 9]] * model.source_embedding.scale
    torch.testing.assert_close(pooled[0, 0], own.mean(dim=0))
    model = tiny_model(surface=MaxFusion(mode=SoftFusion(), has_ffn=False))
    own = model.source_embedding.table.weight[[7, 9]] * model.source_embedding.scale
    torch.testing.assert_close(model.head.start(*model.encode(source))[0, 0], own.amax(dim=0).clamp(min=0))
    # Nothing but symbols: a zero vector, not a division by zero.
    model = tiny_model(surface=MeanFusion())
    assert not model.head.start(*model.encode(torch.tensor([[3, 2]]))).any()


def test_scores_of_given_translations_are_true_log_probabilities():
    model, (source, target) = tiny_model(surface=AttendedFusion(mode=HardFusion(gate=0.8))), tiny_pair()
    every = torch.stack([token_log_probs([model], (source, target), torch.full_like(target, token))
                         for token in range(VOCABULARY_SIZE)])
    torch.testing.assert_close(every.exp().sum(dim=0), torch.ones(target.shape))
    terms = model(source, target)
    torch.testing.assert_close(every.movedim(0, -1), normalise(model.log_probs(source, target), terms))


def test_temperature_divides_the_decoders_own_scores():
    model, pair = tiny_model(surface=AttendedFusion(mode=HardFusion(gate=0.8))), tiny_pair()
    target, source = model(*pair)
    expected = 0.8 * (torch.nn.functional.linear(target.features, model.output_weight) / 2).log_softmax(-1)
    expected += 0.2 * torch.nn.functional.linear(source.features, model.output_weight).log_softmax(-1)
    torch.testing.assert_close(log_probs(sharpen([target, source], 2.0), model.output_weight), expected)


def test_fusion_sees_of_a_token_what_the_encoder_sees_of_it():
    expected, ids = read_tensors("sf_dropout_mask", "expected"), read_tensors("sf_dropout_mask", "inputs")["src_tokens"]
    table = TokenTable(64, 32, pad_id=1)
    table.weight.data = read_tensors("sf_dropout_mask", "weights")["embed_tokens"]
    embedding = InputEmbedding(table, scale=32**0.5, positions=SinusoidalPositions(64, 32), norm=None, dropout_p=0.3,
                               offers_tokens=True)
    torch.manual_seed(0)
    embedded = embedding(ids, Layout.of_ids(ids, 1))
    is_token = ids.ne(1)
    # The reference recovers the mask from its own input; so do we, from ours and from its.
    for given, tokens in ((embedded.input, embedded.tokens), (expected["x_after_dropout"], expected["encoder_embedding"])):
        recovered = (given != 0) * expected["scaled_embedding"] / 0.7
        torch.testing.assert_close(tokens[is_token], recovered[is_token])
    assert 0.2 < (embedded.input[is_token] == 0).float().mean() < 0.4
    embedding.eval()
    torch.testing.assert_close(embedding(ids, Layout.of_ids(ids, 1)).tokens[is_token], expected["scaled_embedding"][is_token])


def test_word_dropout_makes_words_unknown_in_training_only():
    torch.manual_seed(0)
    ids = torch.randint(0, 40, (50, 40))
    dropped = WordDropout(0.25, unk_id=3, first_word_id=4)(ids)
    assert torch.equal(dropped[ids < 4], ids[ids < 4])
    changed = dropped != ids
    assert (dropped[changed] == 3).all()
    assert changed[ids >= 4].float().mean().item() == pytest.approx(0.25, abs=0.03)
    table = TokenTable(40, 8, pad_id=1)
    torch.nn.init.normal_(table.weight)
    embedding = InputEmbedding(table, scale=1.0, positions=None, norm=None, dropout_p=0.0,
                               word_dropout=WordDropout(0.9, unk_id=3, first_word_id=4))
    layout = Layout.of_ids(ids, 1)
    assert torch.equal(embedding.eval()(ids, layout).input, table(ids))
    assert not torch.equal(embedding.train()(ids, layout).input, table(ids))
