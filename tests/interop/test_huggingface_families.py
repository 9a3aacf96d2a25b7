"""Families of Hugging Face's other than Marian, saved by transformers itself: the same function, the same texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import lamina
from huggingface_models import (
    SENTENCES,
    bart_folder,
    byte_level,
    fsmt_folder,
    m2m_folder,
    mbart_folder,
    nllb_folder,
    roberta_folder,
    transformers,
    without_tokenizer_json,
    xlm_roberta_folder,
)
from huggingface_parity import TARGETS, check_log_probs, check_texts, opened, our_ids, quiet
from lamina.errors import CheckpointError, LaminaError
from lamina.interop.any_format import load_any
from lamina.interop.huggingface_generation import _TAKEN, _WITHOUT_EFFECT

MESSY = "The cat’s hat — “a small-boat”, 1,000.5 %  (really?)… &amp; <b> 。next１"


@pytest.mark.parametrize("changes", [{}, {"activation_function": "gelu_new", "scale_embedding": True}], ids=["plain", "other"])
def test_bart_computes_the_same(tmp_path, changes):
    tokenizer, theirs, ours = opened(bart_folder(tmp_path / "bart", end_bias=7.0, **changes))
    for line in (*SENTENCES, MESSY, "größer ☃"):
        assert ours.encode_source(line).tolist() == tokenizer(line).input_ids
        assert ours.subwords[1].decode(ours.subwords[1].encode(line)) == line
    lengths = set(check_texts(tokenizer, theirs, ours))
    lengths |= set(check_texts(*opened(bart_folder(tmp_path / "brief", end_bias=8.0, **changes))))
    assert len(lengths) > 1
    assert all(found.ids[0] == 0 for found in ours.translate(SENTENCES))  # its forced first token
    check_log_probs(*opened(bart_folder(tmp_path / "calm", noise=0.3, **changes)), SENTENCES[:4], TARGETS)


def test_older_folders_of_bart_are_read(tmp_path):
    """vocab.json and merges.txt, and one tensor for all that is tied, under any of its names."""
    folder = bart_folder(tmp_path / "bart")
    expected = lamina.load(folder, device="cpu", notice=quiet).translate(SENTENCES)
    vocab, merges = byte_level()
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{one} {two}\n" for one, two in merges), encoding="utf-8")
    weights = load_file(folder / "model.safetensors")
    assert "model.shared.weight" in weights
    assert "lm_head.weight" not in weights
    for name in ("model.shared.weight", "lm_head.weight", "model.encoder.embed_tokens.weight"):
        kept = {other: weight for other, weight in weights.items() if other != "model.shared.weight"}
        save_file({**kept, name: weights["model.shared.weight"]}, folder / "model.safetensors")
        assert lamina.load(folder, device="cpu", notice=quiet).translate(SENTENCES) == expected


@pytest.mark.parametrize("is_tied", [False, True], ids=["separate", "tied output"])
def test_fsmt_computes_the_same(tmp_path, is_tied):
    folder = fsmt_folder(tmp_path / "fsmt", noise=0.3)
    if is_tied:
        weights = load_file(folder / "model.safetensors")
        weights["model.decoder.output_projection.weight"] = weights["model.decoder.embed_tokens.weight"].clone()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer, theirs, ours = opened(folder)
    assert load_any(folder).model_config().embedding.share_decoder == is_tied
    for line in (*SENTENCES, MESSY):
        assert ours.encode_source(line).tolist() == tokenizer(line).input_ids
        assert ours.subwords[0].encode(line) == tokenizer.tokenize(line)
    ids = json.loads((folder / "vocab-tgt.json").read_text())
    rows = [torch.tensor([*(ids.get(piece, 3) for piece in ours.subwords[1].encode(target)), 2]) for target in TARGETS]
    labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
    check_log_probs(tokenizer, theirs, ours, SENTENCES[:4], TARGETS, labels)
    if not is_tied:
        lengths = {length for end in (3.0, 4.0) for length in
                   check_texts(*opened(fsmt_folder(tmp_path / f"ends{end}", seed=3, end=end)))}
        assert len(lengths) > 2


def mbart50_folder(folder: Any, **changes: Any) -> Any:
    return mbart_folder(folder, is_mbart50=True, **changes)


def legacy_nllb_folder(folder: Any, **changes: Any) -> Any:
    return nllb_folder(folder, is_legacy=True, **changes)


MANY = [m2m_folder, nllb_folder, legacy_nllb_folder, mbart_folder, mbart50_folder]


@pytest.mark.parametrize("make", MANY)
def test_models_of_many_languages_compute_the_same(tmp_path, make):
    tokenizer, theirs, ours = opened(make(tmp_path / "calm", noise=0.3))
    labels = None
    if make in (mbart_folder, legacy_nllb_folder):
        # mBART has its language behind the end, and the labels of legacy folders lack it in front, where their texts have it.
        code = tokenizer.convert_tokens_to_ids("fra_Latn")
        rows = [torch.tensor(row[:-1] if make is mbart_folder else [code, *row[:-1]])
                for row in tokenizer(text_target=TARGETS).input_ids]
        labels = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
    check_log_probs(tokenizer, theirs, ours, SENTENCES[:4], TARGETS, labels)
    lengths = {length for end in (1.0, 1.25) for length in check_texts(*opened(make(tmp_path / f"end{end}", end=end)))}
    assert len(lengths) > 1


@pytest.mark.parametrize("make", MANY)
def test_the_flags_choose_the_languages(tmp_path, make):
    folder = make(tmp_path / "many", noise=0.3)
    other, known = {m2m_folder: ("de", "de"), mbart_folder: ("de_DE", "de"), mbart50_folder: ("de_DE", "de")}.get(
        make, ("deu_Latn", "deu"))
    tokenizer, theirs, _ = opened(folder)
    tokenizer.src_lang = other
    ours = lamina.load(folder, device="cpu", notice=quiet, source_lang=known, target_lang=other)
    code = tokenizer.get_lang_id(other) if make is m2m_folder else tokenizer.convert_tokens_to_ids(other)
    start = {"decoder_start_token_id": code} if make is mbart_folder else {"forced_bos_token_id": code}
    for sentence in SENTENCES:
        expected = theirs.generate(**tokenizer([sentence], return_tensors="pt"), num_beams=1, max_length=24, **start)[0][1:]
        found = ours.translate(sentence, beam=1, min_length=0, max_length_offset=22)
        assert found.ids == our_ids(tokenizer, ours, expected).tolist()[: len(found.ids)]
    for flag, side in (({"target_lang": "tlh"}, "target"), ({"source_lang": "tlh"}, "source")):
        with pytest.raises(CheckpointError, match=f"tlh is none of its languages: --{side}-lang must be one of"):
            lamina.load(folder, device="cpu", notice=quiet, **flag)


def test_a_sentencepiece_model_with_a_list_of_languages_is_a_tokenizer_too(tmp_path):
    folder = mbart50_folder(tmp_path / "mbart50")
    expected = lamina.load(folder, device="cpu", notice=quiet)
    without_tokenizer_json(folder)
    found = lamina.load(folder, device="cpu", notice=quiet)
    assert found.vocabularies == expected.vocabularies
    assert found.translate(SENTENCES) == expected.translate(SENTENCES)
    (folder / "special_tokens_map.json").unlink()
    damage("tokenizer_config.json", extra_special_tokens=[])(folder)
    with pytest.raises(CheckpointError, match="lists its languages nowhere"):
        load_any(folder)


def test_a_target_language_must_be_known(tmp_path):
    folder = nllb_folder(tmp_path / "nllb")
    damage("generation_config.json", forced_bos_token_id=None)(folder)
    damage("tokenizer_config.json", tgt_lang=None)(folder)
    with pytest.raises(CheckpointError, match="translates into 202 languages: choose one with --target-lang"):
        load_any(folder)


def test_a_tokenizer_of_another_class_is_read_by_its_tokenizer_json(tmp_path):
    """What its last step puts around a text counts, under any name."""
    folder = bart_folder(tmp_path / "bart")
    expected = lamina.load(folder, device="cpu", notice=quiet).translate(SENTENCES)
    steps = {"type": "TemplateProcessing", "pair": [], "special_tokens": {},
             "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                        {"SpecialToken": {"id": "</s>", "type_id": 0}}]}
    damage("tokenizer.json", post_processor=steps)(folder)
    damage("tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")(folder)
    assert lamina.load(folder, device="cpu", notice=quiet).translate(SENTENCES) == expected
    damage("tokenizer.json", post_processor={**steps, "single": steps["single"][:2]})(folder)
    with pytest.raises(CheckpointError, match="does not end a text with the symbol"):
        load_any(folder)
    damage("tokenizer_config.json", tokenizer_class="MySecretTokenizer")(folder)
    with pytest.raises(CheckpointError, match="names the tokenizer MySecretTokenizer, which Lamina does not have"):
        load_any(folder)


@pytest.mark.parametrize("make", [roberta_folder, lambda folder: roberta_folder(folder, strips=False), xlm_roberta_folder],
                         ids=["roberta", "roberta that keeps spaces", "xlm-roberta"])
@torch.no_grad()
def test_masked_models_fill_the_same_gaps(tmp_path, make):
    library, folder = transformers(), make(tmp_path / "masked")
    tokenizer = library.AutoTokenizer.from_pretrained(folder)
    theirs = library.AutoModelForMaskedLM.from_pretrained(folder).eval()
    ours = lamina.load(folder, device="cpu", notice=quiet)
    vocabulary = ours.vocabularies[0]
    order = torch.tensor([vocabulary.id(name) for name in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))])
    assert sorted(order.tolist()) == list(range(len(vocabulary)))
    batch = tokenizer(SENTENCES, return_tensors="pt", padding=True)
    found = ours.models[0].logits(order[batch.input_ids]).log_softmax(dim=-1)[..., order]
    is_text = batch.attention_mask.bool()
    torch.testing.assert_close(found[is_text], theirs(**batch).logits.log_softmax(dim=-1)[is_text], rtol=0, atol=1e-5)
    for text in ("the old <mask> sings near", "a small <mask>", "<mask> bird walks"):
        ids = tokenizer(text, return_tensors="pt").input_ids
        gap = ids[0].tolist().index(tokenizer.mask_token_id)
        expected = theirs(input_ids=ids).logits[0, gap].softmax(dim=-1)
        for filling in ours.fill_mask(text, topk=9):
            number = tokenizer.convert_tokens_to_ids(filling.token)
            assert filling.probability == pytest.approx(float(expected[number]), abs=1e-6)


def test_a_piece_that_spells_bytes_fills_a_gap_as_text(tmp_path):
    ours = lamina.load(roberta_folder(tmp_path / "roberta"), device="cpu", notice=quiet)
    fillings = {filling.token: filling.text for filling in ours.fill_mask("the <mask> boat", topk=300)}
    marked = next(piece for piece in fillings if piece.startswith("Ġ") and len(piece) > 2)
    assert fillings[marked] == f"the {marked[1:]} boat"
    assert fillings["a"] == "thea boat"


def test_every_setting_of_a_search_is_known_or_refused(tmp_path):
    """What transformers writes of its own accord is no obstacle, and each of its settings is either taken or named."""
    folder = bart_folder(tmp_path / "bart")
    known = transformers().GenerationConfig().to_dict()
    for name in set(known) - _TAKEN:
        damage("generation_config.json", **{name: {"a": 1}})(folder)
        if _WITHOUT_EFFECT.fullmatch(name):
            load_any(folder)
        else:
            with pytest.raises(CheckpointError, match=f"{name}="):
                load_any(folder)
        damage("generation_config.json", **{name: None})(folder)


def test_settings_that_flags_give_are_told(tmp_path):
    folder = bart_folder(tmp_path / "bart")
    damage("generation_config.json", num_beams=4, length_penalty=2.0, max_length=142, min_length=56, no_repeat_ngram_size=3,
           num_return_sequences=2)(folder)
    heard: list[str] = []
    load_any(folder, notice=heard.append)
    assert "early_stopping=None: searches here stop as with True" in heard[0]
    assert "--beam 4 --lenpen 2 --max-len-b 140 --min-len 55 --no-repeat-ngram-size 3 --nbest 2" in heard[1]


def damage(name: str, **changes: Any) -> Any:
    def apply(folder: Any) -> None:
        described = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**described, **changes}))

    return apply


def without_head(folder: Any) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if not name.startswith("lm_head")}
    save_file(kept, folder / "model.safetensors")


@pytest.mark.parametrize(("make", "break_it", "message"), [
    (bart_folder, lambda folder: (folder / "tokenizer.json").unlink(), "lacks tokenizer.json"),
    (bart_folder, lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be read as a tokenizer.json"),
    (bart_folder, damage("config.json", normalize_before=True), "normalize_before=True"),
    (bart_folder, damage("generation_config.json", repetition_penalty=1.2), "repetition_penalty=1.2, which Lamina's search"),
    (bart_folder, damage("generation_config.json", forced_eos_token_id=5), "forced_eos_token_id=5"),
    (bart_folder, damage("generation_config.json", eos_token_id=[2, 5]), r"eos_token_id=\[2, 5\]"),
    (bart_folder, damage("generation_config.json", quantum_beams=3), "quantum_beams=3"),
    (bart_folder, damage("config.json", bos_token_id=2), "puts <s> around texts, which config.json does not know"),
    (fsmt_folder, lambda folder: (folder / "vocab-tgt.json").unlink(), "lacks vocab-tgt.json"),
    (fsmt_folder, lambda folder: (folder / "merges.txt").write_text("lonely"), "line 1: expected two pieces"),
    (fsmt_folder, damage("tokenizer_config.json", langs=["en"]), "does not say its two languages"),
    (fsmt_folder, damage("config.json", pad_token_id=0), "pad_token_id=0"),
    (m2m_folder, lambda folder: (folder / "vocab.json").unlink(), "lacks vocab.json"),
    (m2m_folder, lambda folder: (folder / "sentencepiece.bpe.model").unlink(), "lacks sentencepiece.bpe.model"),
    (m2m_folder, damage("tokenizer_config.json", language_codes="klingon"), "language_codes='klingon'"),
    (nllb_folder, lambda folder: (folder / "tokenizer.json").unlink(), "lacks tokenizer.json"),
    (mbart_folder, lambda folder: (folder / "tokenizer.json").write_text("[]"), "cannot be read as a tokenizer.json"),
    (mbart_folder, damage("config.json", normalize_before=False), "normalize_before=False"),
    (roberta_folder, damage("config.json", hidden_act="relu"), "hidden_act='relu'"),
    (roberta_folder, damage("config.json", vocab_size=5), "the model's table has 5 rows"),
    (roberta_folder, damage("config.json", max_position_embeddings=1), "max-positions is -1"),
    (roberta_folder, without_head, "holds no lm_head"),
    (roberta_folder, lambda folder: (folder / "model.safetensors").unlink(), "holds no weights"),
])
def test_damaged_folders_are_refused_in_one_line(tmp_path, make, break_it, message):
    folder = make(tmp_path / "model")
    break_it(folder)
    with pytest.raises(LaminaError, match=message) as caught:
        load_any(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
