"""Families of Hugging Face's other than Marian, saved by transformers itself: the same function, the same texts."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import lamina
from huggingface_models import SENTENCES, bart_folder, byte_level, fsmt_folder
from huggingface_parity import TARGETS, check_log_probs, check_texts, opened, quiet
from lamina.errors import CheckpointError
from lamina.interop.any_format import load_any

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


def damage(name: str, **changes: Any) -> Any:
    def apply(folder: Any) -> None:
        described = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**described, **changes}))

    return apply


@pytest.mark.parametrize(("make", "break_it", "message"), [
    (bart_folder, lambda folder: (folder / "tokenizer.json").unlink(), "lacks tokenizer.json"),
    (bart_folder, lambda folder: (folder / "tokenizer.json").write_text("{}"), "cannot be read as a tokenizer.json"),
    (bart_folder, damage("config.json", normalize_before=True), "normalize_before=True"),
    (bart_folder, damage("config.json", bos_token_id=2), "bos_token_id is 2"),
    (fsmt_folder, lambda folder: (folder / "vocab-tgt.json").unlink(), "lacks vocab-tgt.json"),
    (fsmt_folder, lambda folder: (folder / "merges.txt").write_text("lonely"), "line 1: expected two pieces"),
    (fsmt_folder, damage("tokenizer_config.json", langs=["en"]), "does not say its two languages"),
    (fsmt_folder, damage("config.json", pad_token_id=0), "pad_token_id=0"),
])
def test_damaged_folders_are_refused_in_one_line(tmp_path, make, break_it, message):
    folder = make(tmp_path / "model")
    break_it(folder)
    with pytest.raises(CheckpointError, match=message) as caught:
        load_any(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
