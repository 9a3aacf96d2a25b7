"""Another dictionary than the checkpoint's: old text keeps its probabilities, new types begin where their pieces are."""

from dataclasses import replace

import pytest
import torch

from lamina.checkpoint.dictionary_change import vocabulary_rows, with_dictionaries
from lamina.checkpoint.format import Checkpoint, load_checkpoint, load_weights_
from lamina.cli import main
from lamina.config.model import LanguageModelConfig
from lamina.config.presets import roberta_base
from lamina.config.train_options import TrainConfig
from lamina.errors import CheckpointError
from lamina.fields import flatten, unique_leaves
from lamina.models.build import build_decoder_only, build_masked_model, build_model
from lamina.parts.surface_fusion import OutputBias
from lamina.text.subword import Bpe, SentencePiece, Whitespace, learn_subword, subword_to_dict
from lamina.text.vocabulary import FIRST_WORD_ID, Vocabulary
from tiny import FUSIONS, TINY_FLAGS, WORDS, make_data, tiny_config, tiny_lm_config, write_text

PIECES = ["the@@", "a", "b", "c", "ab", "bc@@", "c@@"]
OLD = Vocabulary([*PIECES, *(f"word{number}" for number in range(40 - 4 - len(PIECES)))], [1] * 36)
NUM_NEW = 500


def extended(old=OLD, number=NUM_NEW, order=1):
    """500 new types; with another `order`, old and new ones are mixed."""
    words = [*old.symbols[FIRST_WORD_ID:], *(f"neu{number}" for number in range(number))]
    return Vocabulary(words[::order], [1] * len(words))


def checkpoint_of(task, config, model, *, sides=1, old=OLD, subword=None):
    known = {leaf.name: leaf.default for leaf in unique_leaves(TrainConfig) if leaf.name in ("arch",)}
    return Checkpoint(config={"task": task, **known, **flatten(config)}, languages=("en", "xx")[:sides],
                      dictionaries=(old.to_text(),) * sides, subwords=(subword_to_dict(subword or Whitespace()),) * sides,
                      weights={name: weight.detach().clone() for name, weight in model.named_parameters()})


def randomised(model, seed=0):
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model.double().eval()


def adopt(checkpoint, model, new, subword=None):
    said = []
    sides = len(checkpoint.dictionaries)
    changed = with_dictionaries(checkpoint, model, (new,) * sides, (subword or Whitespace(),) * sides, "old.pt", said.append)
    assert changed.dictionaries == (new.to_text(),) * sides
    load_weights_(model.double(), changed.weights)
    return model.eval(), said


def renormalised(log_probs, ids):
    return log_probs[..., ids].log_softmax(dim=-1)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("how", ["tied", "separate", "decoder tied", "bias", *FUSIONS])
def test_500_more_types_leave_old_text_its_probabilities(how, order):
    embedding = {"separate": {"share_all": False}, "decoder tied": {"share_all": False, "share_decoder": True}}.get(how, {})
    config = tiny_config(**embedding, **{"bias": {"surface": OutputBias()}, **FUSIONS}.get(how, {}))
    new = extended(order=order)
    model = randomised(build_model(config, len(OLD), len(OLD)))
    checkpoint = checkpoint_of("translation", config, model, sides=2)
    other, said = adopt(checkpoint, build_model(config, len(new), len(new)), new)
    old_to_new = torch.tensor(new.ids(OLD.symbols))
    source, target = torch.randint(4, 40, (3, 7)), torch.randint(4, 40, (3, 6))
    with torch.no_grad():
        before = model.log_probs(source, target).log_softmax(dim=-1)
        after = renormalised(other.log_probs(old_to_new[source], old_to_new[target]), old_to_new)
    torch.testing.assert_close(after, before, rtol=0, atol=1e-6)
    expected = "40 of 540 types keep their row, 500 as the mean of all words"
    assert said == ([f"another dictionary than that of old.pt: {expected}"] if "separate" not in how and "decoder" not in how
                    else [f"another {side} dictionary than that of old.pt: {expected}" for side in ("source", "target")])


def test_a_language_model_and_a_masked_one_likewise():
    new = extended()
    old_to_new, text = torch.tensor(new.ids(OLD.symbols)), torch.randint(4, 40, (3, 6))
    config = tiny_lm_config(share_decoder=True)
    model = randomised(build_decoder_only(config, len(OLD)))
    other, _ = adopt(checkpoint_of("language_modeling", config, model), build_decoder_only(config, len(new)), new)
    with torch.no_grad():
        torch.testing.assert_close(renormalised(other.log_probs(old_to_new[text]), old_to_new), model.log_probs(text),
                                   rtol=0, atol=1e-6)
    encoder = replace(roberta_base().encoder, num_layers=2, model_dim=16, ffn_dim=32, num_heads=2)
    config = replace(roberta_base(), encoder=encoder)
    model = randomised(build_masked_model(config, len(OLD)))
    other, _ = adopt(checkpoint_of("masked_lm", config, model), build_masked_model(config, len(new)), new)
    with torch.no_grad():
        before, after = (net.logits(ids).log_softmax(dim=-1) for net, ids in ((model, text), (other, old_to_new[text])))
    assert "head.bias" in [name for table in vocabulary_rows(other) for name in table.names]
    torch.testing.assert_close(renormalised(after, old_to_new), before, rtol=0, atol=1e-6)


@pytest.mark.parametrize("ties", [True, False])
def test_an_adaptive_vocabulary_grows_at_its_end(ties):
    lm = LanguageModelConfig(softmax_cutoff=(10, 20), is_adaptive=True, input_cutoff=(10, 20), input_factor=2.0,
                             softmax_factor=2.0, ties_weights=ties)
    config = tiny_lm_config(lm=lm)
    model = randomised(build_decoder_only(config, len(OLD)))
    checkpoint = checkpoint_of("language_modeling", config, model)
    new = extended()
    other, _ = adopt(checkpoint, build_decoder_only(config, len(new)), new)
    text = torch.randint(4, 40, (3, 6))
    with torch.no_grad():
        before, after = model.log_probs(text), other.log_probs(text)
    # New types are in the last band: the others say what they said, and within the last one old types keep their shares.
    torch.testing.assert_close(after[..., :20], before[..., :20], rtol=0, atol=1e-6)
    torch.testing.assert_close(after[..., 20:40].log_softmax(-1), before[..., 20:40].log_softmax(-1), rtol=0, atol=1e-6)
    turned = extended(order=-1)
    with pytest.raises(CheckpointError, match=r"moves to another band of the adaptive vocabulary.*--srcdict"):
        adopt(checkpoint, build_decoder_only(config, len(turned)), turned)


# -- new types begin as their pieces

CODES = b"#version: 0.2\na b</w>\nt h\nth e\n"


def row_of(symbol, words, subword, new_subword=None, old_words=PIECES):
    old, new = (Vocabulary(symbols, [1] * len(symbols)) for symbols in (old_words, [*old_words, *words]))
    config = tiny_lm_config(share_decoder=True)
    model = randomised(build_decoder_only(config, len(old)))
    checkpoint = checkpoint_of("language_modeling", config, model, old=old, subword=subword)
    other, said = adopt(checkpoint, build_decoder_only(config, len(new)), new, new_subword or subword)
    table, rows = (net.state_dict()["head.table.weight"] for net in (model, other))
    return rows[new.id(symbol)], table, old, said


def test_bpe_types_are_the_mean_of_their_pieces():
    bpe = Bpe.from_bytes(CODES)
    row, table, old, said = row_of("theab", ["theab"], bpe, old_words=["the@@", "ab", "a@@", "b", "a"])
    torch.testing.assert_close(row, table[[old.id("the@@"), old.id("ab")]].mean(dim=0))
    assert "1 begin as the mean of their pieces (2.0 each)" in said[0]
    # What goes on behind it ends in a piece that goes on: "theab@@" is the@@ and then ab, which goes on only as a@@ b.
    row, table, old, _ = row_of("thea@@", ["thea@@"], bpe, old_words=["the@@", "ab", "a@@", "b", "a"])
    torch.testing.assert_close(row, table[[old.id("the@@"), old.id("a@@")]].mean(dim=0))


def test_sentencepiece_types_are_the_mean_of_their_pieces():
    model = learn_subword("sentencepiece", [" ".join(WORDS), "sing singing sings singer red redder"] * 20, 60)
    assert isinstance(model, SentencePiece)
    pieces = sorted({piece for word in WORDS for piece in model.encode(word)} | {"▁", "s", "i", "n", "g", "r", "e", "d"})
    row, table, old, _ = row_of("▁redgarden", ["▁redgarden"], model, old_words=pieces)
    torch.testing.assert_close(row, table[old.ids(model.encode("redgarden"))].mean(dim=0))
    # Inside a word no piece begins one.
    row, table, old, _ = row_of("inred", ["inred"], model, old_words=pieces)
    assert model.encode("inred") == ["▁", *"inred"]
    torch.testing.assert_close(row, table[old.ids("inred")].mean(dim=0))


def test_without_its_subword_model_pieces_are_the_longest_there_are():
    row, table, old, _ = row_of("theabc", ["theabc"], Whitespace(), old_words=["the@@", "ab@@", "a@@", "b@@", "c", "q"])
    torch.testing.assert_close(row, table[old.ids(["the@@", "ab@@", "c"])].mean(dim=0))
    row, table, _, said = row_of("xyz", ["xyz"], Whitespace())
    torch.testing.assert_close(row, table[FIRST_WORD_ID:].mean(dim=0))
    assert "1 as the mean of all words" in said[0]


# -- by command

@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    data = make_data(folder)
    assert main(["train", str(data), *TINY_FLAGS, "--max-epoch", "2", "--save-dir", str(folder / "base"), "--cpu"]) == 0
    return folder


def other_data(folder, name, words):
    text = write_text(folder / name, 20)
    for split in ("train", "valid"):
        write_text(text, 6, seed=1, split="valid")
        for side in ("en", "xx"):
            path = text / f"{split}.{side}"
            path.write_text("".join(f"{line} {words}\n" for line in path.read_text().splitlines()))
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--validpref", f"{text}/valid",
                 "--destdir", str(folder / f"{name}-data"), "--workers", "1", "--joined-dictionary"]) == 0
    return folder / f"{name}-data"


def test_finetune_from_model_takes_another_dictionary(trained, capsys):
    data = other_data(trained, "more", "neue Wörter")
    capsys.readouterr()
    words = ["train", str(data), *TINY_FLAGS, "--max-update", "1", "--lr", "1e-12", "--save-dir", str(trained / "fine"),
             "--cpu", "--finetune-from-model", str(trained / "base" / "checkpoint_last.pt")]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "another dictionary than that of" in out
    assert "2 as the mean of all words" in out
    base, fine = (load_checkpoint(trained / name / "checkpoint_last.pt") for name in ("base", "fine"))
    old, new = base.vocabularies()[0], fine.vocabularies()[0]
    table, rows = (checkpoint.weights["source_embedding.table.weight"] for checkpoint in (base, fine))
    shared = [symbol for symbol in old.symbols if symbol in new]  # all words, and not all of the fillers behind them
    torch.testing.assert_close(rows[new.ids(shared)], table[old.ids(shared)], rtol=0, atol=1e-6)
    assert set(old.symbols) - set(new.symbols) == {"madeupword0002", "madeupword0003"}
    # The same command continues; a run that is resumed keeps the dictionary it has.
    assert main([*words, "--max-update", "2"]) == 0
    capsys.readouterr()
    assert main(["train", str(data), *TINY_FLAGS, "--max-update", "9", "--save-dir", str(trained / "base"), "--cpu"]) == 2
    assert "--finetune-from-model" in capsys.readouterr().err


def test_a_dictionary_without_a_word_in_common_is_refused(trained, tmp_path, capsys):
    text = tmp_path / "text"
    text.mkdir()
    for split in ("train", "valid"):
        for side in ("en", "xx"):
            (text / f"{split}.{side}").write_text("ganz andere\n")
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--validpref", f"{text}/valid",
                 "--destdir", str(tmp_path / "data"), "--workers", "1", "--joined-dictionary"]) == 0
    assert main(["train", str(tmp_path / "data"), *TINY_FLAGS, "--save-dir", str(tmp_path / "fine"), "--cpu",
                 "--max-update", "1", "--finetune-from-model", str(trained / "base" / "checkpoint_last.pt")]) == 2
    assert "no word of the source dictionary is one of" in capsys.readouterr().err
