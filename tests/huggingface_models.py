"""Small models of Hugging Face's, with random weights and tokenizers learned from a few lines, as folders on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.text.subword import learn_sentencepiece
from tiny import WORDS

SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
         "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64, "dropout": 0.1}
ENGLISH = [" ".join(WORDS[start::step]) for start in range(6) for step in range(1, 6)]
CAPITALS = [line.upper() for line in ENGLISH]
SENTENCES = ["a small boat", "the old river sings near the moon", "bird", "the letter writes a garden past the house along",
             "zebra walks"]


def transformers() -> Any:
    return pytest.importorskip("transformers", reason="the package transformers is not installed (it needs Python 3.11)")


def shaken(model: Any, seed: int = 1) -> Any:
    """Away from zeros and ones, so that a forgotten bias or norm shows; sentences then end at several lengths."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += (0.3 if "embed" in name or "shared" in name else 0.7) * torch.randn_like(parameter)
    return model.eval()


def spm_pieces(model: bytes) -> list[str]:
    from sentencepiece import SentencePieceProcessor

    processor = SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


def marian_folder(folder: Path, *, is_separate: bool = False, codes: tuple[str, ...] = (), seed: int = 2,
                  end_bias: float = 0.0, **changes: Any) -> Path:
    """What Helsinki-NLP's folders hold: two sentencepiece models, vocab.json, </s> 0, <unk> 1, <pad> last."""
    library = transformers()
    folder.mkdir(parents=True, exist_ok=True)
    source, target = (learn_sentencepiece(lines, 60, 1.0).model for lines in (ENGLISH, CAPITALS))
    (folder / "source.spm").write_bytes(source)
    (folder / "target.spm").write_bytes(target)

    def vocabulary(*models: bytes) -> dict[str, int]:
        words = [piece for model in models for piece in spm_pieces(model) if piece not in ("<unk>", "<s>", "</s>")]
        names = list(dict.fromkeys(["</s>", "<unk>", *codes, *words, "<pad>"]))
        return {name: number for number, name in enumerate(names)}

    first = vocabulary(source) if is_separate else vocabulary(source, target)
    second = vocabulary(target) if is_separate else first
    settings: dict[str, Any] = {"source_lang": "en", "target_lang": "xx", "separate_vocabs": is_separate,
                                "tokenizer_class": "MarianTokenizer"}
    (folder / "vocab.json").write_text(json.dumps(first), encoding="utf-8")
    if is_separate:
        (folder / "target_vocab.json").write_text(json.dumps(second), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    pad = len(first) - 1
    if is_separate:  # one id for both sides
        second_pad = len(second) - 1
        pad = max(pad, second_pad)
    config = library.MarianConfig(**{
        **SIZES, "vocab_size": pad + 1, "decoder_vocab_size": pad + 1, "pad_token_id": pad, "eos_token_id": 0,
        "decoder_start_token_id": pad, "forced_eos_token_id": 0, "activation_function": "swish", "scale_embedding": True,
        "share_encoder_decoder_embeddings": not is_separate, **changes})
    torch.manual_seed(seed)
    model = shaken(library.MarianMTModel(config), seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator))
        model.final_logits_bias[0, 0] = end_bias
    model.generation_config.bad_words_ids = [[pad]]
    model.generation_config.max_length = 24
    model.generation_config.num_beams = 4
    model.save_pretrained(folder)
    return folder
