"""Masked language modelling: which words stand in the gaps of a running text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lamina.config.batches import DataConfig
from lamina.config.model import ModelConfig
from lamina.data.masked_blocks import MaskedBlocks
from lamina.data.masking import Masker
from lamina.errors import ConfigError
from lamina.init.pretrained import fill_table_
from lamina.models.masked import MaskedModel
from lamina.parts.contracts import TaskKind
from lamina.tasks.language_modeling import TextTask


class MaskedLm(TextTask):
    """One text, in blocks with gaps; the perplexity of what stood in them judges."""

    def __init__(self, kind: TaskKind, data: DataConfig, model: ModelConfig) -> None:
        super().__init__(kind, data, model)
        size, limit, masking = data.blocks.size, model.embedding.max_positions, data.masking
        if not 2 <= size <= limit:
            raise ConfigError(f"--tokens-per-sample is {size}, <s> included; it must be at least 2 and at most "
                              f"--max-positions {limit}.")
        self.vocabularies = (self.vocabularies[0].with_mask(),)
        self.masker = Masker(self.vocabularies[0], mask_p=masking.mask_p, keep_p=masking.keep_p, random_p=masking.random_p,
                             is_whole_words=masking.is_whole_words, is_frequency_weighted=masking.is_frequency_weighted)

    @property
    def max_positions(self) -> tuple[int]:
        return (self.model_config.embedding.max_positions,)

    def open_split(self, folder: Path, split: str, *, is_training: bool) -> MaskedBlocks:
        # One less for <s>.
        blocks = self.open_blocks(folder, split, self.data.blocks.size - 1, is_training=is_training)
        return MaskedBlocks(blocks, self.masker)

    def build_model(self) -> Any:
        model = super().build_model()
        path = self.model_config.encoder.embed_path
        if path is not None:
            assert isinstance(model, MaskedModel)
            fill_table_(model.source_embedding.table, Path(path), self.vocabularies[0])
        return model
