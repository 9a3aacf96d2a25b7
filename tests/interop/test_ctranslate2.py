"""The same translations by CTranslate2 itself. Skipped where it is not installed."""

from dataclasses import replace

import pytest
import torch

from lamina.api import Translator
from lamina.checkpoint.format import Checkpoint, load_checkpoint, save_checkpoint
from lamina.cli import main
from lamina.config.model import DropoutConfig, EmbeddingConfig, LanguageModelConfig, ModelConfig, StackConfig
from lamina.errors import CheckpointError
from lamina.fields import flatten
from lamina.interop.ctranslate2 import ACTIVATIONS, check_representable, write_ctranslate2
from lamina.parts.position_kinds import Learned, Sinusoidal
from lamina.parts.residuals import Admin, DeepNet, ReZeroInit, ReZeroPostNorm
from lamina.pruning.cut import Keep, prune_checkpoint
from lamina.text.subword import Whitespace, subword_to_dict
from tiny import FUSIONS, VOCABULARY_SIZE, make_data, tiny_config, tiny_language_model, tiny_model

TRAIN = ("--arch", "tiny", "--encoder-layers", "2", "--decoder-layers", "2", "--encoder-embed-dim", "48",
         "--encoder-ffn-embed-dim", "96", "--encoder-attention-heads", "2", "--decoder-attention-heads", "2",
         "--share-all-embeddings", "--max-tokens", "800", "--warmup-updates", "20", "--lr", "0.004", "--dropout", "0", "--cpu",
         "--no-epoch-checkpoints", "--max-update", "600", "--disable-validation")


def checkpoint_of(config, seed=0):
    """A random model that is no learner, so that every weight matters."""
    text, subword = "".join(f"w{number} 1\n" for number in range(VOCABULARY_SIZE - 4)), subword_to_dict(Whitespace())
    return Checkpoint(config={"task": "translation", "arch": "tiny", **flatten(config)}, languages=("en", "xx"),
                      dictionaries=(text, text), subwords=(subword, subword),
                      weights={name: weight.detach() for name, weight in tiny_model(config, seed).named_parameters()})


def both(folder, checkpoint):
    """Their translator and ours."""
    theirs = pytest.importorskip("ctranslate2")
    folder.mkdir()
    write_ctranslate2(folder, checkpoint, lambda _: None)
    return (theirs.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1),
            Translator([checkpoint.build_model()], checkpoint.vocabularies(), checkpoint.subword_models(), device="cpu"))


def assert_same_scores(theirs, ours, pairs):
    """Of every token of given translations, </s> included."""
    scores = theirs.score_batch([source.split() for source, _ in pairs], [target.split() for _, target in pairs])
    for score, own in zip(scores, ours.score(pairs), strict=True):
        # float32 over other kernels; folded models have passed through one more rounding
        torch.testing.assert_close(torch.tensor(score.log_probs), torch.tensor(own.token_scores), rtol=1e-5, atol=2e-5)


def random_pairs(number=12):
    generator = torch.Generator().manual_seed(3)

    def line():
        length = int(torch.randint(1, 12, (), generator=generator))
        return " ".join(f"w{int(word)}" for word in torch.randint(VOCABULARY_SIZE - 4, (length,), generator=generator))

    return [(line(), line()) for _ in range(number)]


def uneven():
    """Depths, heads, orders and positions that differ between the sides."""
    config = tiny_config(share_all=False)
    return replace(config, encoder=replace(config.encoder, positions=Learned(), num_layers=3, num_heads=4),
                   decoder=replace(config.decoder, is_pre_norm=True))


CONFIGS = {
    "plain": tiny_config(), "pre-norm": tiny_config(is_pre_norm=True), "admin": tiny_config(init=Admin()),
    "admin with embedding norm": tiny_config(init=Admin(), has_norm=True), "deepnet": tiny_config(init=DeepNet()),
    "rezero_postln": tiny_config(init=ReZeroPostNorm()), "embedding norm": tiny_config(has_norm=True),
    "unscaled": tiny_config(is_scaled=False, share_all=False),
    "shared output": tiny_config(share_all=False, share_decoder=True),
    "no positions": tiny_config(has_positions=False), "uneven": uneven(),
    **{name: replace(tiny_config(), activation=name) for name in ACTIVATIONS if name != "relu"},
}


@pytest.mark.parametrize("name", CONFIGS)
def test_scores(tmp_path, name):
    theirs, ours = both(tmp_path / "model", checkpoint_of(CONFIGS[name]))
    assert_same_scores(theirs, ours, random_pairs())


def test_scores_of_a_pruned_model(tmp_path):
    """Admin's, pruned and then folded."""
    whole = checkpoint_of(tiny_config(init=Admin(), num_layers=4))
    theirs, ours = both(tmp_path / "model", prune_checkpoint(whole, Keep((0, 2), (1, 3))))
    assert_same_scores(theirs, ours, random_pairs())


@pytest.mark.parametrize("options", [
    {}, {"is_pre_norm": False}, {"share_decoder": True}, {"positions": Learned()},
    {"lm": LanguageModelConfig(has_final_norm=False)}, {"lm": LanguageModelConfig(input_dim=8, output_dim=8)}])
def test_scores_of_a_language_model(tmp_path, options):
    theirs = pytest.importorskip("ctranslate2")
    model = tiny_language_model(**options)
    checkpoint = language_model_checkpoint(model, **options)
    write_ctranslate2(tmp_path, checkpoint, lambda _: None)
    generator = theirs.Generator(str(tmp_path), device="cpu", compute_type="float32", intra_threads=1)
    symbols = checkpoint.vocabularies()[0].symbols
    tokens = torch.randint(4, VOCABULARY_SIZE, (3, 9), generator=torch.Generator().manual_seed(5))
    found = generator.score_batch([["</s>", *(symbols[token] for token in row)] for row in tokens.tolist()])
    inputs = torch.cat([torch.full_like(tokens[:, :1], 2), tokens[:, :-1]], dim=1)
    expected = model.log_probs(inputs).gather(2, tokens[:, :, None])[:, :, 0]
    torch.testing.assert_close(torch.tensor([score.log_probs for score in found]), expected, rtol=1e-5, atol=2e-5)


def language_model_checkpoint(model, *, is_pre_norm=True, positions=None, lm=None, **embedding):
    stack = StackConfig(num_layers=2, model_dim=16, ffn_dim=32, num_heads=2, is_pre_norm=is_pre_norm,
                        positions=positions or Sinusoidal())
    config = ModelConfig(decoder=stack, dropout=DropoutConfig(dropout_p=0.0), lm=lm or LanguageModelConfig(),
                         embedding=EmbeddingConfig(max_target_positions=64, **embedding))
    return Checkpoint(config={"task": "language_modeling", "arch": "tiny_lm", **flatten(config)}, languages=("text",),
                      dictionaries=("".join(f"w{number} 1\n" for number in range(VOCABULARY_SIZE - 4)),),
                      subwords=(subword_to_dict(Whitespace()),),
                      weights={name: weight.detach() for name, weight in model.named_parameters()})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A plain model that can do without layers, and one with Admin."""
    pytest.importorskip("ctranslate2")
    folder = tmp_path_factory.mktemp("ctranslate2")
    data = make_data(folder, 400)
    kinds = {"plain": ("--encoder-layerdrop", "0.3", "--decoder-layerdrop", "0.3"), "admin": ("--init-type", "admin")}
    for name, flags in kinds.items():
        assert main(["train", str(data), *TRAIN, *flags, "--save-dir", str(folder / name)]) == 0
    whole = load_checkpoint(folder / "plain" / "checkpoint_last.pt")
    (folder / "pruned").mkdir()
    save_checkpoint(folder / "pruned" / "checkpoint_last.pt", prune_checkpoint(whole, Keep(encoder=(0,))))
    return folder


@pytest.mark.parametrize("name", ["plain", "admin", "pruned"])
@pytest.mark.parametrize("beam", [1, 4])
def test_the_same_translations(trained, tmp_path, name, beam):
    checkpoint = load_checkpoint(trained / name / "checkpoint_last.pt")
    lines = [line for split in ("valid", "train") for line in (trained / "text" / f"{split}.en").read_text().splitlines()[:40]]
    theirs, ours = both(tmp_path / "model", checkpoint)
    # Where </s> may not come first, CTranslate2 shares its probability out among the rest, and we do not.
    found = theirs.translate_batch([line.split() for line in lines], beam_size=beam, min_decoding_length=0, return_scores=True)
    expected = ours.translate(lines, beam=beam, min_len=0)
    assert [" ".join(result.hypotheses[0]) for result in found] == [translation.text for translation in expected]
    assert len({translation.text for translation in expected}) > len(lines) / 2
    assert [result.scores[0] for result in found] == pytest.approx([item.score for item in expected], abs=1e-5)
    assert_same_scores(theirs, ours, [(line, item.text) for line, item in zip(lines, expected, strict=True)])


# -- what it cannot express

@pytest.mark.parametrize(("changes", "reason"), [
    *((FUSIONS[name], "SurfaceFusion mixes a second distribution") for name in ("att hard", "att soft", "max hard")),
    (FUSIONS["both"], "read different states of the encoder"),
    *((FUSIONS[name], "read different states of the encoder") for name in ("transparent", "layer-wise")),
    ({"init": ReZeroInit()}, "rezero has no LayerNorm"),
])
def test_refused_with_the_reason(changes, reason):
    with pytest.raises(CheckpointError, match=reason):
        check_representable(checkpoint_of(tiny_config(**changes)))


def test_other_tasks_and_activations_are_refused():
    checkpoint = checkpoint_of(replace(tiny_config(), activation="linear"))
    with pytest.raises(CheckpointError, match="no --activation-fn linear"):
        check_representable(checkpoint)
    checkpoint.config["task"] = "masked_lm"
    with pytest.raises(CheckpointError, match="this model is of --task masked_lm"):
        check_representable(checkpoint)


@pytest.mark.parametrize(("lm", "reason"), [
    (LanguageModelConfig(input_dim=8), "only one of --decoder-input-dim"),
    (LanguageModelConfig(softmax_cutoff=(10, 20)), "adaptive vocabularies")])
def test_other_vocabularies_are_refused(lm, reason):
    with pytest.raises(CheckpointError, match=reason):
        check_representable(language_model_checkpoint(tiny_language_model(lm=lm), lm=lm))
