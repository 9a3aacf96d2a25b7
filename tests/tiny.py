"""Small models, batches and data folders for tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lamina.cli import main
from lamina.config.model import ClassifierConfig, DropoutConfig, EmbeddingConfig, LanguageModelConfig, ModelConfig, StackConfig
from lamina.config.presets import roberta_base
from lamina.data.batching import Batch
from lamina.models.build import build_decoder_only, build_masked_model, build_model
from lamina.models.decoder_only import DecoderOnly
from lamina.models.encoder_decoder import EncoderDecoder
from lamina.models.masked import MaskedModel
from lamina.parts.attention_residuals import AttendOverDepth
from lamina.parts.contracts import Fusion, Head, Mixing, Positions, Residual
from lamina.parts.denseformer import DenseFormer
from lamina.parts.encoder_fusion import LayerWiseFusion, NoFusion, TransparentFusion
from lamina.parts.lime import LayerIntegratedMemory
from lamina.parts.mixings import NoMixing
from lamina.parts.position_kinds import Learned, Sinusoidal
from lamina.parts.residuals import DefaultInit
from lamina.parts.surface_fusion import AttendedFusion, HardFusion, MaxFusion, MeanFusion, NoSurface, PostnormFusion, SoftFusion
from lamina.parts.value_residual import ValueResidual
from lamina.text.vocabulary import EOS, PAD

VOCABULARY_SIZE = 40


# What cross-attention and the softmax read, and both at once.
FUSIONS: dict[str, dict[str, Any]] = {
    "layer-wise": {"fusion": LayerWiseFusion()},
    "transparent": {"fusion": TransparentFusion()},
    "fine-grained with embedding": {"fusion": TransparentFusion(is_fine_grained=True, reads_embedding=True)},
    "transparent with all": {"fusion": TransparentFusion(reads_embedding=True, embedding_has_positions=True, reads_input=True,
                                                         has_ffn=True)},
    "att hard": {"surface": AttendedFusion(mode=HardFusion(gate=0.8))},
    "att learned": {"surface": AttendedFusion(has_linear=True, num_heads=2, layer=0)},
    "att soft": {"surface": AttendedFusion(mode=SoftFusion(tau=0.7), has_ffn=False, has_positions=True)},
    "mean postnorm": {"surface": MeanFusion(mode=PostnormFusion())},
    "max hard": {"surface": MaxFusion()},
    "both": {"fusion": TransparentFusion(reads_embedding=True),
             "surface": AttendedFusion(mode=HardFusion(gate=0.6))},
}

# What the layers of a stack read of those below; attention residuals take the place of Pre-LN's sums.
MIXINGS: dict[str, dict[str, Any]] = {
    "denseformer": {"mixing": DenseFormer()},
    "denseformer, dilated": {"mixing": DenseFormer(dilation=2, period=2)},
    "value-residual": {"mixing": ValueResidual()},
    "lime": {"mixing": LayerIntegratedMemory()},
    "attention-residuals": {"mixing": AttendOverDepth(), "is_pre_norm": True},
    "attention-residuals in blocks": {"mixing": AttendOverDepth(num_blocks=2), "is_pre_norm": True},
}


def tiny_config(*, is_pre_norm: bool = False, num_layers: int = 2, dropout_p: float = 0.0, init: Residual | None = None,
                fusion: Fusion | None = None, surface: Head | None = None, mixing: Mixing | None = None,
                **embedding: Any) -> ModelConfig:
    stack = StackConfig(num_layers=num_layers, model_dim=16, ffn_dim=32, num_heads=2, is_pre_norm=is_pre_norm)
    return ModelConfig(encoder=stack, decoder=stack, dropout=DropoutConfig(dropout_p=dropout_p), init=init or DefaultInit(),
                       fusion=fusion or NoFusion(), surface=surface or NoSurface(), mixing=mixing or NoMixing(),
                       embedding=replace(EmbeddingConfig(share_all=True, max_source_positions=64, max_target_positions=64),
                                         **embedding))


def tiny_model(config: ModelConfig | None = None, seed: int = 0, **changes: Any) -> EncoderDecoder:
    torch.manual_seed(seed)
    return _shaken(build_model(config or tiny_config(**changes), VOCABULARY_SIZE, VOCABULARY_SIZE)).eval()


def tiny_lm_config(*, is_pre_norm: bool = True, num_layers: int = 2, lm: LanguageModelConfig | None = None,
                   positions: Positions | None = None, **embedding: Any) -> ModelConfig:
    stack = StackConfig(num_layers=num_layers, model_dim=16, ffn_dim=32, num_heads=2, is_pre_norm=is_pre_norm,
                        positions=positions or Sinusoidal())
    return ModelConfig(decoder=stack, dropout=DropoutConfig(dropout_p=0.0), lm=lm or LanguageModelConfig(),
                       embedding=replace(EmbeddingConfig(max_target_positions=64), **embedding))


def tiny_language_model(seed: int = 0, **changes: Any) -> DecoderOnly:
    torch.manual_seed(seed)
    return _shaken(build_decoder_only(tiny_lm_config(**changes), VOCABULARY_SIZE)).eval()


def tiny_masked_model(seed: int = 0, *, is_fresh: bool = False, num_classes: int = 0, unties_head: bool = False,
                      **stack: Any) -> MaskedModel:
    """A small RoBERTa; `is_fresh` leaves it as it was initialised."""
    small = {"num_layers": 2, "model_dim": 16, "ffn_dim": 32, "num_heads": 2, "positions": Learned()}
    own = StackConfig(**{**small, **stack})
    embedding = replace(roberta_base().embedding, unties_head=unties_head)
    config = replace(roberta_base(), encoder=own, dropout=DropoutConfig(dropout_p=0.0), embedding=embedding,
                     classifier=ClassifierConfig(num_classes=num_classes))
    torch.manual_seed(seed)
    model = build_masked_model(config, VOCABULARY_SIZE)
    return (model if is_fresh else _shaken(model)).eval()


def _shaken(model: nn.Module) -> Any:
    """Away from zeros and ones, so that a forgotten bias or norm shows."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def tiny_pair(seed: int = 0, batch: int = 3, source_length: int = 7, target_length: int = 6) -> tuple[Tensor, Tensor]:
    """Source and decoder input, without padding."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(4, VOCABULARY_SIZE, (batch, source_length), generator=generator)
    target = torch.randint(4, VOCABULARY_SIZE, (batch, target_length), generator=generator)
    source[:, -1] = EOS
    target[:, 0] = EOS
    return source, target


def batch_of(rows: slice, seed: int = 0) -> Batch:
    """Some of eight pairs, as training reads them."""
    source, target = (side[rows] for side in tiny_pair(seed, batch=8))
    target_out = torch.cat([target[:, 1:], torch.full_like(target[:, :1], EOS)], dim=1)
    return Batch(source, target, target_out, source.numel(), target.numel(), tuple(range(len(target))))


def pad(tensor: Tensor, left: int = 0, right: int = 0) -> Tensor:
    return torch.nn.functional.pad(tensor, (left, right), value=PAD)


WORDS = "the a small old red boat bird garden river moon house letter sings opens writes walks reads near past along".split()


def write_text(folder: Path, num_lines: int = 20, seed: int = 0, split: str = "train") -> Path:
    """A made-up parallel text: the target says the source backwards, in capitals."""
    generator = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    sources, targets = [], []
    for _ in range(num_lines):
        length = int(torch.randint(2, 9, (), generator=generator))
        words = [WORDS[int(number)] for number in torch.randint(len(WORDS), (length,), generator=generator)]
        sources.append(" ".join(words))
        targets.append(" ".join(word.upper() for word in reversed(words)))
    (folder / f"{split}.en").write_text("\n".join(sources) + "\n", encoding="utf-8")
    (folder / f"{split}.xx").write_text("\n".join(targets) + "\n", encoding="utf-8")
    return folder


def make_data(folder: Path, num_lines: int = 20, flags: tuple[str, ...] = ("--joined-dictionary",)) -> Path:
    """A data folder of that text."""
    text = write_text(folder / "text", num_lines)
    write_text(text, 6, seed=1, split="valid")
    code = main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--validpref", f"{text}/valid",
                 "--destdir", str(folder / "data"), "--workers", "1", *flags])
    assert code == 0
    return folder / "data"


TINY_FLAGS = ("--arch", "tiny", "--encoder-layers", "1", "--decoder-layers", "1", "--encoder-embed-dim", "16",
              "--encoder-ffn-embed-dim", "32", "--encoder-attention-heads", "2", "--decoder-attention-heads", "2",
              "--share-all-embeddings", "--max-tokens", "64", "--warmup-updates", "4", "--lr", "0.005", "--log-interval", "1")

TINY_MASKED_FLAGS = ("--encoder-layers", "2", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64",
                     "--encoder-attention-heads", "2", "--max-positions", "64", "--dropout", "0.0", "--attention-dropout",
                     "0.0", "--log-interval", "10", "--cpu")
