"""What transformers loads of an exported folder: the same log-probabilities, the same texts; the rest is refused by name."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import lamina
from huggingface_models import (
    CAPITALS,
    ENGLISH,
    SENTENCES,
    bart_folder,
    fsmt_folder,
    m2m_folder,
    marian_folder,
    mbart_folder,
    nllb_folder,
    roberta_folder,
    shaken,
    transformers,
    xlm_roberta_folder,
)
from huggingface_parity import in_double
from lamina.api.translator import Translator
from lamina.checkpoint.format import Checkpoint, load_checkpoint, save_checkpoint
from lamina.cli import main
from lamina.config.model import MannersConfig, ModelConfig
from lamina.config.presets import roberta_base
from lamina.errors import CheckpointError
from lamina.fields import flatten
from lamina.interop.any_format import load_any
from lamina.interop.huggingface_classes import class_for
from lamina.parts.attention_residuals import AttendOverDepth
from lamina.parts.encoder_fusion import TransparentFusion
from lamina.parts.position_kinds import Learned, MarianSinusoids
from lamina.parts.surface_fusion import AttendedFusion, OutputBias
from lamina.registry import register
from lamina.text.subword import Subword, Whitespace, learn_bpe, learn_sentencepiece, subword_to_dict
from lamina.text.tokenizer import Moses
from lamina.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary
from tiny import TINY_FLAGS, make_data, tiny_config

LONGEST = 20


@cache
def subwords(kind: str) -> tuple[Subword, Subword]:
    if kind == "sentencepiece":
        return tuple(learn_sentencepiece(lines, 60, 1.0) for lines in (ENGLISH, CAPITALS))  # type: ignore[return-value]
    if kind == "whitespace":
        return Whitespace(), Whitespace()
    bpe = learn_bpe(ENGLISH + CAPITALS, 90)
    return (Moses(bpe, "en"), Moses(bpe, "en")) if kind == "moses" else (bpe, bpe)


def vocabulary(*sides: tuple[Subword, list[str]]) -> Vocabulary:
    return Vocabulary.build(Counter(piece for subword, lines in sides for line in lines for piece in subword.encode(line)))


def on_both(config: ModelConfig, **changes: Any) -> ModelConfig:
    return replace(config, encoder=replace(config.encoder, **changes), decoder=replace(config.decoder, **changes))


@torch.no_grad()
def ends_(model: Any, dictionaries: tuple[Vocabulary, ...], own: tuple[Subword, ...]) -> bool:
    """Random weights say one word for ever: the last norm favours </s> until texts have several lengths, if they ever do."""
    table, last = model.head.table.weight, model.decoder.norm or model.decoder.layers[-1].ffn_residual.norm
    last.bias -= 4 * table[UNK] / table[UNK].norm()
    for _ in range(12):
        found = Translator([model], dictionaries, own, device="cpu").translate(SENTENCES, beam=1, max_length_offset=LONGEST)
        lengths = {len(item.ids) for item in found}
        if min(lengths) < LONGEST and len(lengths) > 1:
            return True
        last.bias += 0.7 * table[EOS] / table[EOS].norm()
    return False


def checkpoint_of(config: ModelConfig, kind: str = "sentencepiece", *, is_joined: bool = True,
                  ends: bool = False) -> Checkpoint:
    """Of random weights; with `ends`, those whose texts end at several lengths."""
    sides = list(zip(subwords(kind), (ENGLISH, CAPITALS), strict=True))
    dictionaries = (vocabulary(*sides),) * 2 if is_joined else tuple(vocabulary(side) for side in sides)
    for seed in range(20):
        torch.manual_seed(seed)
        model = register.task["translation"]().build_model(config, tuple(map(len, dictionaries))).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.2 * torch.randn_like(parameter)
        if not ends or ends_(model, dictionaries, subwords(kind)):
            return Checkpoint(config={"task": "translation", "arch": "transformer", **flatten(config)}, languages=("en", "xx"),
                              dictionaries=tuple(own.to_text() for own in dictionaries),
                              subwords=tuple(map(subword_to_dict, subwords(kind))),
                              weights={name: weight.detach() for name, weight in model.named_parameters()})
    raise AssertionError("no seed gives texts that end")


def exported(folder: Path, checkpoint: Checkpoint | Path, *flags: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = checkpoint if isinstance(checkpoint, Path) else folder / "model.pt"
    if isinstance(checkpoint, Checkpoint):
        save_checkpoint(path, checkpoint)
    assert main(["export", str(path), "--format", "huggingface", "--output", str(folder / "out"), *flags]) == 0
    return folder / "out"


@torch.no_grad()
def check_same(folder: Path, ours: Any, name: str, sentences: list[str] = SENTENCES) -> list[int]:
    """Tokens of sources, log-probabilities of what is found, tokens and texts of greedy and beam search; how long they are."""
    library = transformers()
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    theirs, told = library.AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert type(theirs).__name__ == name
    assert not any(told.values()), told
    start, lengths = torch.tensor([[theirs.config.decoder_start_token_id]]), []
    for sentence in sentences:
        batch = tokenizer([sentence], return_tensors="pt")
        assert set(batch) == {"input_ids", "attention_mask"}
        assert batch["input_ids"][0].tolist() == ours.encode_source(sentence).tolist()
        for beam in (1, 4):
            row = theirs.eval().generate(**batch, num_beams=beam, max_length=LONGEST + 2)[0][1:].tolist()
            found = ours.translate(sentence, beam=beam, max_length_offset=LONGEST)
            assert row == found.ids
            if UNK not in found.ids:  # which they leave out and we show
                assert tokenizer.decode(row, skip_special_tokens=True) == found.text
            target = torch.tensor([found.ids])
            before = torch.cat([torch.tensor([[EOS]]), target[:, :-1]], dim=1)
            exact, own = in_double(theirs, ours.models[0])
            expected = own.log_probs(batch["input_ids"], before)
            before = torch.cat([start, target[:, :-1]], dim=1)
            scores = exact(**batch, decoder_input_ids=before, use_cache=False).logits
            # Of what is never said (-1000), float32 has fewer decimals.
            torch.testing.assert_close(scores.log_softmax(dim=-1).clamp(min=-500), expected.clamp(min=-500), rtol=0, atol=1e-5)
            lengths.append(len(row))
    return lengths


POST, PRE = tiny_config(), tiny_config(is_pre_norm=True)
MODELS: dict[str, tuple[str, ModelConfig, str, bool]] = {
    "FSMT": ("FSMTForConditionalGeneration", POST, "sentencepiece", True),
    "FSMT, two dictionaries": ("FSMTForConditionalGeneration", tiny_config(share_all=False, share_decoder=True),
                               "sentencepiece", False),
    "FSMT, BPE": ("FSMTForConditionalGeneration", tiny_config(share_all=False), "bpe", False),
    "FSMT, Moses": ("FSMTForConditionalGeneration", POST, "moses", True),
    "FSMT, words": ("FSMTForConditionalGeneration", replace(POST, activation="gelu_fast"), "whitespace", True),
    "FSMT, learned positions of two lengths": (
        "FSMTForConditionalGeneration", on_both(tiny_config(max_target_positions=40, is_scaled=False), positions=Learned()),
        "sentencepiece", True),
    "FSMT, no positions": ("FSMTForConditionalGeneration", tiny_config(has_positions=False), "sentencepiece", True),
    "MarianMT": ("MarianMTModel", on_both(replace(POST, surface=OutputBias()), positions=MarianSinusoids()), "sentencepiece",
                 True),
    "MarianMT, three tables": ("MarianMTModel", on_both(tiny_config(share_all=False), positions=MarianSinusoids()),
                               "sentencepiece", False),
    "BART": ("BartForConditionalGeneration", tiny_config(has_norm=True), "sentencepiece", True),
    "BART, learned positions and a bias": (
        "BartForConditionalGeneration",
        on_both(replace(tiny_config(has_norm=True), surface=OutputBias(), activation="gelu"), positions=Learned()),
        "whitespace", True),
    "BART, two tables": ("BartForConditionalGeneration", tiny_config(has_norm=True, share_all=False, share_decoder=True),
                         "bpe", True),
    "M2M-100": ("M2M100ForConditionalGeneration", PRE, "sentencepiece", True),
    "M2M-100, three tables": ("M2M100ForConditionalGeneration", tiny_config(is_pre_norm=True, share_all=False), "sentencepiece",
                              True),
    "mBART": ("MBartForConditionalGeneration", tiny_config(is_pre_norm=True, has_norm=True), "sentencepiece", True),
    "mBART, rules": ("MBartForConditionalGeneration", on_both(replace(
        tiny_config(is_pre_norm=True, has_norm=True), manners=MannersConfig(forbidden=(7, 9), first=(12,), frees_forced=True,
                                                                            renormalizes=True)),
        positions=Learned()), "sentencepiece", True),
}


@pytest.mark.parametrize("case", MODELS)
def test_theirs_computes_the_same(tmp_path, case):
    name, config, kind, is_joined = MODELS[case]
    # What is forced at the longest length costs nothing there.
    config = replace(config, manners=replace(config.manners, frees_forced=True))
    folder = exported(tmp_path, checkpoint_of(config, kind, is_joined=is_joined, ends=True))
    lengths = check_same(folder, lamina.load(tmp_path / "model.pt", device="cpu"), name)
    assert min(lengths) < LONGEST
    assert len(set(lengths)) > 1


@pytest.mark.parametrize("init", ["admin", "rezero_postln", "deepnet"])
def test_scaled_residuals_are_folded(tmp_path, capsys, init):
    """FSMT takes the tables that then hold the scales, positions included."""
    folder = exported(tmp_path, checkpoint_of(tiny_config(init=register.residual[init]())))
    assert f"{init} residuals are folded into plain ones" in capsys.readouterr().err
    ours = lamina.load(tmp_path / "model.pt", device="cpu")
    check_same(folder, ours, "FSMTForConditionalGeneration")


def test_padding_changes_nothing(tmp_path):
    """A batch of texts of several lengths."""
    library = transformers()
    folder = exported(tmp_path, checkpoint_of(POST, ends=True))
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    theirs = library.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    rows = theirs.generate(**tokenizer(SENTENCES, return_tensors="pt", padding=True), max_length=LONGEST + 2)
    texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
    ours = lamina.load(tmp_path / "model.pt", device="cpu").translate(SENTENCES, max_length_offset=LONGEST)
    assert [text for text, own in zip(texts, ours, strict=True) if UNK not in own.ids] == [
        own.text for own in ours if UNK not in own.ids]


@pytest.mark.parametrize("is_separate", [False, True], ids=["shared", "separate"])
def test_marian_goes_back(tmp_path, is_separate):
    """In, pruned, and out again."""
    folder = marian_folder(tmp_path / "opus", is_separate=is_separate, end_bias=6.0)
    back = exported(tmp_path / "whole", folder)
    ours = lamina.load(folder, device="cpu", notice=lambda _: None)
    check_same(back, ours, "MarianMTModel")
    assert main(["prune", str(folder), "--output", str(tmp_path / "small.pt"), "--decoder-layers-to-keep", "0,"]) == 0
    small = exported(tmp_path / "small", tmp_path / "small.pt")
    check_same(small, lamina.load(tmp_path / "small.pt", device="cpu"), "MarianMTModel")
    again = lamina.load(back, device="cpu", notice=lambda _: None)
    assert [found.text for found in again.translate(SENTENCES)] == [found.text for found in ours.translate(SENTENCES)]


# -- what was imported goes back

IMPORTED: dict[str, tuple[Callable[..., Path], str]] = {
    "FSMT": (lambda folder: fsmt_folder(folder, noise=0.3, end=1.0), "FSMTForConditionalGeneration"),
    "BART": (lambda folder: bart_folder(folder, noise=0.3, end_bias=7.0), "BartForConditionalGeneration"),
    "mBART": (lambda folder: mbart_folder(folder, noise=0.3, end=1.0), "MBartForConditionalGeneration"),
    "mBART-50": (lambda folder: mbart_folder(folder, is_mbart50=True, noise=0.3, end=1.0), "MBartForConditionalGeneration"),
    "M2M-100": (lambda folder: m2m_folder(folder, noise=0.3, end=1.0), "M2M100ForConditionalGeneration"),
    "NLLB": (lambda folder: nllb_folder(folder, noise=0.3, end=1.0), "M2M100ForConditionalGeneration"),
    "NLLB, legacy": (lambda folder: nllb_folder(folder, is_legacy=True, noise=0.3, end=1.0), "M2M100ForConditionalGeneration"),
}


@pytest.mark.parametrize("case", IMPORTED)
@torch.no_grad()
def test_an_imported_model_goes_back(tmp_path, case):
    """Raw text in and out, tokens and log-probabilities, beside the model that it came from."""
    library = transformers()
    make, name = IMPORTED[case]
    folder = make(tmp_path / "theirs")
    back = exported(tmp_path / "ours", folder)
    (old_cut, old), (cut, new) = ((library.AutoTokenizer.from_pretrained(place),
                                   library.AutoModelForSeq2SeqLM.from_pretrained(place).eval()) for place in (folder, back))
    assert type(new).__name__ == name
    size = min(old.get_output_embeddings().weight.size(0), new.get_output_embeddings().weight.size(0))
    for sentence in SENTENCES:
        before, batch = old_cut([sentence], return_tensors="pt"), cut([sentence], return_tensors="pt")
        assert batch["input_ids"].tolist() == before["input_ids"].tolist()
        for beam in (1, 4):
            asked = {"num_beams": beam, "early_stopping": beam > 1, "max_length": LONGEST, "min_length": 0}
            rows = [model.generate(**inputs, **asked) for model, inputs in ((old, before), (new, batch))]
            assert rows[0].tolist() == rows[1].tolist()
            assert old_cut.decode(rows[0][0], skip_special_tokens=True) == cut.decode(rows[1][0], skip_special_tokens=True)
            scores = [model(**inputs, decoder_input_ids=rows[0], use_cache=False).logits.log_softmax(dim=-1)[..., :size]
                      for model, inputs in ((old, before), (new, batch))]
            torch.testing.assert_close(scores[1], scores[0], rtol=0, atol=1e-5)
    again = lamina.load(back, device="cpu", notice=lambda _: None)
    ours = lamina.load(folder, device="cpu", notice=lambda _: None)
    assert [found.text for found in again.translate(SENTENCES)] == [found.text for found in ours.translate(SENTENCES)]


@pytest.mark.parametrize("make", [roberta_folder, xlm_roberta_folder])
@torch.no_grad()
def test_an_imported_encoder_goes_back(tmp_path, make):
    library = transformers()
    folder = make(tmp_path / "theirs")
    back = exported(tmp_path / "ours", folder)
    (old_cut, old), (cut, new) = ((library.AutoTokenizer.from_pretrained(place),
                                   library.AutoModelForMaskedLM.from_pretrained(place).eval()) for place in (folder, back))
    for sentence in [*SENTENCES, "the <mask> boat"]:
        before, batch = old_cut(sentence, return_tensors="pt"), cut(sentence, return_tensors="pt")
        assert batch["input_ids"].tolist() == before["input_ids"].tolist()
        torch.testing.assert_close(new(**batch).logits.log_softmax(dim=-1), old(**before).logits.log_softmax(dim=-1), rtol=0,
                                   atol=1e-5)


def test_folded_positions_come_back(tmp_path):
    """What FSMT's file holds of positions counts where it is no sinusoid."""
    folder = exported(tmp_path, checkpoint_of(tiny_config(init=register.residual["admin"]())))
    ours, again = (lamina.load(place, device="cpu", notice=lambda _: None) for place in (tmp_path / "model.pt", folder))
    for one, other in zip(ours.score([(sentence, "A BOAT") for sentence in SENTENCES]),
                          again.score([(sentence, "A BOAT") for sentence in SENTENCES]), strict=True):
        assert other.total == pytest.approx(one.total, abs=1e-4)


# -- masked language models


def masked_checkpoint(kind: str, *, drops: int = 0, **changes: Any) -> Checkpoint:
    stack = replace(roberta_base().encoder, num_layers=2, model_dim=16, ffn_dim=32, num_heads=2)
    config = replace(roberta_base(), encoder=replace(stack, **{name: changes.pop(name) for name in ("is_pre_norm", "positions")
                                                               if name in changes}), **changes)
    subword = subwords(kind)[0]
    words = vocabulary((subword, ENGLISH))
    if drops:
        words = Vocabulary(words.symbols[4:-drops], words.counts[4:-drops])
    words = words.with_mask()
    torch.manual_seed(0)
    model = shaken(register.task["masked_lm"]().build_model(config, (len(words),)))
    return Checkpoint(config={"task": "masked_lm", "arch": "roberta", **flatten(config)}, languages=("text",),
                      dictionaries=(words.to_text(),), subwords=(subword_to_dict(subword),),
                      weights={name: weight.detach() for name, weight in model.named_parameters()})


MASKED = {"sentencepiece": {}, "words": {"kind": "whitespace"}, "another epsilon": {"norm_eps": 1e-6},
          "pieces that the dictionary lacks": {"drops": 12},
          "an output of its own": {"embedding": replace(roberta_base().embedding, unties_head=True)},
          "scaled": {"embedding": replace(roberta_base().embedding, is_scaled=True, max_positions=40)}}


@pytest.mark.parametrize("case", MASKED)
@torch.no_grad()
def test_roberta_computes_the_same(tmp_path, case):
    library = transformers()
    checkpoint = masked_checkpoint(**{"kind": "sentencepiece", **MASKED[case]})
    folder = exported(tmp_path, checkpoint)
    ours = lamina.load(tmp_path / "model.pt", device="cpu")
    theirs, told = library.AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(told.values()), told
    tokenizer, size = library.AutoTokenizer.from_pretrained(folder), len(ours.vocabularies[0])
    for sentence in [*SENTENCES, "the  old\triver ", "a <mask> boat near the moon", "the small <mask>"]:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        mask = ours.vocabularies[0].id("<mask>")
        pieces = [ours.vocabularies[0].ids(ours.subwords[0].encode(part)) for part in sentence.split("<mask>")]
        expected = [BOS, *pieces[0], *([mask, *pieces[1]] if len(pieces) > 1 else []), EOS]
        assert [number if number < size else UNK for number in ids[0].tolist()] == expected
        exact, model = in_double(theirs.eval(), ours.models[0])
        scores = exact(ids).logits.log_softmax(dim=-1)
        own = model.logits(torch.tensor([expected])).log_softmax(dim=-1)
        torch.testing.assert_close(scores[..., :size], own, rtol=0, atol=1e-5)
        assert not scores[..., size:].exp().any()
    filled = library.pipeline("fill-mask", model=str(folder))("the old <mask> sings", top_k=size)
    (best,) = ours.fill_mask("the old <mask> sings", topk=1)
    special = (*range(4), mask)
    first = next(item for item in filled if item["token"] not in special)
    assert ours.vocabularies[0].symbols[first["token"]] == best.token
    assert first["score"] == pytest.approx(best.probability, abs=1e-5)


# -- what is refused


REFUSED = {
    "Pre-LN and Post-LN": (replace(POST, encoder=PRE.encoder), "has Pre-LN in one stack and Post-LN in the other"),
    "fusion": (replace(POST, fusion=TransparentFusion()), "read different states of the encoder"),
    "surface fusion": (replace(POST, surface=AttendedFusion()), "SurfaceFusion mixes a second distribution"),
    "mixing": (replace(PRE, mixing=AttendOverDepth()), "M2M-100 has no --mixing attention-residuals"),
    "rezero": (tiny_config(init=register.residual["rezero"]()), "--init-type rezero has no LayerNorm"),
    "learned positions": (on_both(PRE, positions=Learned()), "M2M-100 computes positions of its own"),
    "a bias": (replace(POST, surface=OutputBias()), "FSMT has no bias at the output"),
    "epsilon": (replace(POST, norm_eps=1e-6), "FSMT has no --norm-eps"),
    "widths": (replace(tiny_config(share_all=False), encoder=replace(POST.encoder, model_dim=32)), "FSMT has one width"),
    "source symbols": (replace(POST, encoder=replace(POST.encoder, reads=("7:0",))), "FSMT has no --encoder-reads"),
    "several first tokens": (replace(POST, manners=MannersConfig(first=(5, 6), frees_forced=True)), "begin with several"),
    "a first token that counts": (replace(POST, manners=MannersConfig(first=(5,))), "a token that it forces costs nothing"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_has_no_class_for_is_refused(case):
    config, reason = REFUSED[case]
    with pytest.raises(CheckpointError, match=reason):
        class_for(checkpoint_of(config))


@pytest.mark.parametrize(("config", "kind", "reason"), [
    (tiny_config(share_all=False, has_norm=True), "sentencepiece", "BART has one dictionary for both sides"),
    (tiny_config(share_all=False, is_pre_norm=True), "sentencepiece", "M2M-100 has one dictionary for both sides"),
    (tiny_config(share_all=False), "whitespace", "its text was cut into pieces before")])
def test_two_dictionaries_are_refused_where_there_is_one(tmp_path, capsys, config, kind, reason):
    save_checkpoint(tmp_path / "model.pt", checkpoint_of(config, kind, is_joined=False))
    assert main(["export", str(tmp_path / "model.pt"), "--format", "huggingface", "--output", str(tmp_path / "out")]) == 2
    assert reason in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize(("changes", "reason"), [
    ({"is_pre_norm": True}, "RoBERTa is Post-LN throughout"), ({"activation": "relu"}, "the head of RoBERTa has gelu"),
    ({"embedding": replace(roberta_base().embedding, has_norm=False)}, "RoBERTa has --layernorm-embedding"),
    ({"task": "language_modeling"}, "models of --task language_modeling are not written")])
def test_other_encoders_are_refused(changes, reason):
    task = changes.pop("task", "masked_lm")
    checkpoint = masked_checkpoint("whitespace", **changes)
    checkpoint.config["task"] = task
    with pytest.raises(CheckpointError, match=reason):
        class_for(checkpoint)


# -- the card


def test_the_card_tells_what_the_checkpoint_knows(tmp_path, capsys):
    data = make_data(tmp_path, flags=("--joined-dictionary", "--subword", "sentencepiece", "--vocab-size", "60"))
    assert main(["train", str(data), "--save-dir", str(tmp_path / "run"), "--max-epoch", "1", "--eval-bleu", "--cpu",
                 *TINY_FLAGS]) == 0
    trained = load_checkpoint(tmp_path / "run" / "checkpoint_best.pt")
    folder = exported(tmp_path / "export", tmp_path / "run" / "checkpoint_best.pt", "--license", "apache-2.0",
                      "--base-model", "someone/something")
    _, front, card = (folder / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front) == {"language": ["en", "xx"], "license": "apache-2.0", "library_name": "transformers",
                                     "pipeline_tag": "translation", "tags": ["translation", "lamina"], "metrics": ["bleu"],
                                     "base_model": "someone/something"}
    bleu = trained.metrics["bleu"]
    assert re.search(rf"\| validation bleu \| {re.escape(f'{bleu:.4g}')} \(nrefs:1\|case:mixed\|eff:no\|tok:13a\|smooth:exp"
                     r"\|version:[\d.]+\) \|", card.replace("\\|", "|"))
    for line in (trained.origin["command"], f"Data: `{data}`."):
        assert line in card
    assert main(["export", "model.pt", "--license", "mit", "--output", "folder"]) == 2
    assert "--license has no effect without --format huggingface" in capsys.readouterr().err


def test_a_model_of_the_hub_is_named_as_base(tmp_path):
    checkpoint = checkpoint_of(POST)
    checkpoint.config["finetune-from-model"] = "hf://Helsinki-NLP/opus-mt-en-ro"
    front = (exported(tmp_path, checkpoint) / "README.md").read_text().split("---\n")[1]
    assert yaml.safe_load(front)["base_model"] == "Helsinki-NLP/opus-mt-en-ro"
    assert yaml.safe_load(front)["license"] == "unknown"


@pytest.mark.parametrize("is_masked", [False, True])
def test_the_lines_of_the_card_run(tmp_path, capsys, monkeypatch, is_masked):
    transformers()
    folder = exported(tmp_path, masked_checkpoint("sentencepiece") if is_masked else checkpoint_of(POST))
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    exec(compile(code, "README.md", "exec"), {})
    said = capsys.readouterr().out
    if is_masked:
        assert "'token_str'" in said
    else:
        (found,) = lamina.load(tmp_path / "model.pt", device="cpu").translate(["a text"])
        assert said.strip() == found.text or UNK in found.ids


def test_the_generation_config_is_our_search(tmp_path):
    folder = exported(tmp_path, checkpoint_of(tiny_config(max_target_positions=40)))
    told = json.loads((folder / "generation_config.json").read_text())
    assert told["max_length"] == 41
    assert (told["num_beams"], told["early_stopping"], told["min_length"], told["suppress_tokens"]) == (5, True, 2, [PAD])
    assert load_any(tmp_path / "model.pt").model_config().embedding.max_target_positions == 40
