"""Small models of Hugging Face's, with random weights and tokenizers learned from a few lines, as folders on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from lamina.text.subword import learn_sentencepiece, learn_subword
from tiny import WORDS

SIZES = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
         "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64, "dropout": 0.1}
ENGLISH = [" ".join(WORDS[start::step]) for start in range(6) for step in range(1, 6)]
CAPITALS = [line.upper() for line in ENGLISH]
SENTENCES = ["a small boat", "the old river sings near the moon", "bird", "the letter writes a garden past the house along",
             "zebra walks"]


def transformers() -> Any:
    return pytest.importorskip("transformers", reason="the package transformers is not installed (it needs Python 3.11)")


def shaken(model: Any, seed: int = 1, noise: float = 0.7) -> Any:
    """Away from zeros and ones, so that a forgotten bias or norm shows; with much noise sentences end at several lengths.

    With little, two ways to compute the same stay within 1e-5 of each other.
    """
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += (0.3 if "embed" in name or "shared" in name else noise) * torch.randn_like(parameter)
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


def byte_level() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Ids and merges of a small byte-level BPE."""
    tokenizers = pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
    learned = tokenizers.ByteLevelBPETokenizer()
    learned.train_from_iterator(ENGLISH + CAPITALS, vocab_size=320, special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
                                show_progress=False)
    model = json.loads(learned.to_str())["model"]
    return model["vocab"], [tuple(pair) for pair in model["merges"]]


def with_bias(model: Any, seed: int, end_bias: float, end: int = 2) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        model.final_logits_bias.copy_(torch.randn(model.final_logits_bias.shape, generator=generator))
        model.final_logits_bias[0, end] = end_bias


@torch.no_grad()
def with_manners(norm: Any, table: Any, end: float, *, never: tuple[int, ...] = (1, 3), end_id: int = 2) -> None:
    """No pads, and sentences that end, through a direction that every last state has; elsewhere it is looked at by nobody."""
    direction = torch.nn.functional.normalize(torch.randn(norm.bias.shape, generator=torch.Generator().manual_seed(5)), dim=0)
    norm.bias.copy_(3 * direction)
    table.weight -= torch.outer(table.weight @ direction, direction)
    table.weight[list(never)] = -3 * direction
    table.weight[end_id] += end * direction


def bart_folder(folder: Path, *, seed: int = 2, noise: float = 0.7, end_bias: float = 4.0, **changes: Any) -> Path:
    library = transformers()
    folder.mkdir(parents=True, exist_ok=True)
    vocab, merges = byte_level()
    library.BartTokenizer(vocab=vocab, merges=merges).save_pretrained(folder)
    config = library.BartConfig(**{**SIZES, "vocab_size": len(vocab) + 3, **changes})
    model = shaken(library.BartForConditionalGeneration(config), seed, noise)
    with_manners(model.model.decoder.layers[-1].final_layer_norm, model.model.shared, 0.0)
    with_bias(model, seed, end_bias)
    model.generation_config.forced_bos_token_id = 0
    model.save_pretrained(folder)
    return folder


FSMT_ENGLISH = [line.replace(" ", ", ", 1) + "." for line in ENGLISH]


def fsmt_folder(folder: Path, *, seed: int = 2, noise: float = 0.7, end: float = 0.5, **changes: Any) -> Path:
    """Two dictionaries of pieces that end in </w>, and merges with their counts."""
    library = transformers()
    pytest.importorskip("sacremoses", reason="the package sacremoses is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    learned = learn_subword("bpe", FSMT_ENGLISH + CAPITALS, 90)
    lines = [line.split() for line in learned.to_bytes().decode().splitlines()[1:]]
    (folder / "merges.txt").write_text("".join(f"{one} {two} 7\n" for one, two in lines), encoding="utf-8")
    letters = sorted({letter for line in FSMT_ENGLISH + CAPITALS for letter in line if letter != " "})
    pieces = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(pair) for pair in lines)]
    sizes = []
    for name, own in (("src", pieces), ("tgt", pieces[::-1][:-3])):
        names = list(dict.fromkeys(["<s>", "<pad>", "</s>", "<unk>", *own]))
        sizes.append(len(names))
        ids = {piece: number for number, piece in enumerate(names)}
        (folder / f"vocab-{name}.json").write_text(json.dumps(ids), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"langs": ["en", "de"], "tokenizer_class": "FSMTTokenizer"}),
                                                  encoding="utf-8")
    config = library.FSMTConfig(**{**SIZES, "langs": ["en", "de"], "src_vocab_size": sizes[0], "tgt_vocab_size": sizes[1],
                                   **changes})
    model = shaken(library.FSMTForConditionalGeneration(config), seed, noise)
    with torch.no_grad():
        for part in (model.model.encoder, model.model.decoder):
            if hasattr(part.embed_positions, "make_weight"):
                part.embed_positions.weight.copy_(part.embed_positions.get_embedding(*part.embed_positions.weight.shape, 1))
    with_manners(model.model.decoder.layers[-1].final_layer_norm, model.model.decoder.output_projection, end)
    model.save_pretrained(folder)
    return folder


def language_pieces() -> tuple[bytes, list[str]]:
    """A sentencepiece model, and its pieces behind the symbols of fairseq's dictionaries."""
    model = learn_sentencepiece(ENGLISH + CAPITALS, 90, 1.0).model
    symbols = ["<s>", "<pad>", "</s>", "<unk>"]
    return model, [*symbols, *(piece for piece in spm_pieces(model) if piece not in symbols)]


def scored_pieces() -> list[tuple[str, float]]:
    """The same with the scores that the model has, for a tokenizer.json that cuts as it does."""
    from sentencepiece import SentencePieceProcessor

    model, names = language_pieces()
    cut = SentencePieceProcessor(model_proto=model)
    return [(name, cut.get_score(cut.piece_to_id(name)) if number > 3 else 0.0) for number, name in enumerate(names)]


def m2m_folder(folder: Path, *, seed: int = 2, noise: float = 0.7, end: float = 0.5, **changes: Any) -> Path:
    """vocab.json without the codes, whose ids follow; a sentencepiece model; English to French."""
    library = transformers()
    folder.mkdir(parents=True, exist_ok=True)
    model, names = language_pieces()
    (folder / "plain.json").write_text(json.dumps({name: number for number, name in enumerate(names)}), encoding="utf-8")
    (folder / "plain.model").write_bytes(model)
    tokenizer = library.M2M100Tokenizer(str(folder / "plain.json"), str(folder / "plain.model"), src_lang="en", tgt_lang="fr")
    # The hub's folders list them as special; what this class saves does not.
    tokenizer.add_special_tokens({"extra_special_tokens": list(tokenizer.lang_code_to_token.values())})
    tokenizer.save_pretrained(folder)
    config = library.M2M100Config(**{**SIZES, "vocab_size": len(names) + 100 + 8, **changes})
    return _of_languages(folder, library.M2M100ForConditionalGeneration(config), tokenizer, "fr", seed, noise, end)


def nllb_folder(folder: Path, *, is_legacy: bool = False, seed: int = 2, noise: float = 0.7, end: float = 0.5) -> Path:
    """A tokenizer.json with byte-pair codes over sentencepiece's marks."""
    library = transformers()
    _, names = language_pieces()
    letters = {name for name in names if len(name) == 1}
    merges = [(name[:-1], name[-1]) for name in sorted(names[4:], key=len) if len(name) > 1 and name[:-1] in names
              and name[-1] in letters]
    tokenizer = library.NllbTokenizer(vocab={name: number for number, name in enumerate(names)}, merges=merges,
                                      src_lang="eng_Latn", tgt_lang="fra_Latn", legacy_behaviour=is_legacy)
    tokenizer.save_pretrained(folder)
    config = library.M2M100Config(**SIZES, vocab_size=len(tokenizer), max_length=24)
    return _of_languages(folder, library.M2M100ForConditionalGeneration(config), tokenizer, "fra_Latn", seed, noise, end)


def without_tokenizer_json(folder: Path) -> None:
    """As the older of mBART's folders are: a sentencepiece model, and a list of the languages behind its pieces."""
    listed = json.loads((folder / "tokenizer_config.json").read_text())["extra_special_tokens"]
    (folder / "tokenizer.json").unlink()
    (folder / "sentencepiece.bpe.model").write_bytes(language_pieces()[0])
    (folder / "special_tokens_map.json").write_text(json.dumps({"additional_special_tokens": listed}), encoding="utf-8")


def mbart_folder(folder: Path, *, is_mbart50: bool = False, seed: int = 2, noise: float = 0.7, end: float = 0.5,
                 **changes: Any) -> Path:
    library = transformers()
    scored = scored_pieces()
    if is_mbart50:  # it takes a model's own order
        tokenizer = library.MBart50Tokenizer(vocab=[scored[3], scored[0], scored[2], *scored[4:]], src_lang="en_XX",
                                             tgt_lang="ro_RO")
    else:
        tokenizer = library.MBartTokenizer(vocab=scored, src_lang="en_XX", tgt_lang="ro_RO")
    tokenizer.save_pretrained(folder)
    config = library.MBartConfig(**{**SIZES, "vocab_size": len(tokenizer), **changes})
    own = library.MBartForConditionalGeneration(config)
    start = tokenizer.convert_tokens_to_ids("ro_RO")
    own.config.decoder_start_token_id = own.generation_config.decoder_start_token_id = 2 if is_mbart50 else start
    return _of_languages(folder, own, tokenizer, "ro_RO" if is_mbart50 else "", seed, noise, end)


def _of_languages(folder: Path, model: Any, tokenizer: Any, target: str, seed: int, noise: float, end: float) -> Path:
    shaken(model, seed, noise)
    with_manners(model.model.decoder.layer_norm, model.model.shared, end)
    if hasattr(model, "final_logits_bias"):
        with_bias(model, seed, 0.0)
        model.final_logits_bias[0, [1, 3]] = -20.0
    model.generation_config.forced_eos_token_id = 2
    if target:
        code = tokenizer.get_lang_id(target) if hasattr(tokenizer, "get_lang_id") else tokenizer.convert_tokens_to_ids(target)
        model.generation_config.forced_bos_token_id = code
    model.save_pretrained(folder)
    return folder


def roberta_folder(folder: Path, *, seed: int = 2, noise: float = 0.3, strips: bool = True, **changes: Any) -> Path:
    """`strips`: <mask> takes the space in front of it, as in the hub's folders."""
    library = transformers()
    vocab, merges = byte_level()
    tokens = {"mask_token": library.AddedToken("<mask>", lstrip=True, special=True)} if strips else {}
    library.RobertaTokenizer(vocab=vocab, merges=merges, **tokens).save_pretrained(folder)
    return _masked(folder, library.RobertaConfig, library.RobertaForMaskedLM, len(vocab), seed, noise, changes)


def xlm_roberta_folder(folder: Path, *, seed: int = 2, noise: float = 0.3, **changes: Any) -> Path:
    library = transformers()
    pieces = scored_pieces()
    library.XLMRobertaTokenizer(vocab=[*pieces, ("<mask>", 0.0)]).save_pretrained(folder)
    return _masked(folder, library.XLMRobertaConfig, library.XLMRobertaForMaskedLM, len(pieces) + 1, seed, noise, changes)


def _masked(folder: Path, kind: Any, model: Any, size: int, seed: int, noise: float, changes: dict[str, Any]) -> Path:
    config = kind(**{"vocab_size": size, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
                     "intermediate_size": 48, "max_position_embeddings": 80, "layer_norm_eps": 1e-3, **changes})
    shaken(model(config), seed, noise).save_pretrained(folder)
    return folder
