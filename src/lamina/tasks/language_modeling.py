"""Language modelling: what comes next in a running text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lamina.config.batches import DataConfig
from lamina.config.model import ModelConfig
from lamina.data.blocks import TokenBlocks, find_language, open_blocks
from lamina.data.verify import load_dictionary, load_folder_subwords
from lamina.init.pretrained import fill_table_
from lamina.models.decoder_only import DecoderOnly
from lamina.parts.contracts import TaskKind
from lamina.tasks.base import Task
from lamina.text.subword import Subword, Whitespace
from lamina.text.vocabulary import Vocabulary

NO_LANGUAGE = "text"  # what a text without a language is called in checkpoints and messages


class TextTask(Task):
    """A folder with one text and its dictionary."""

    vocabularies: tuple[Vocabulary]
    subwords: tuple[Subword]

    def __init__(self, kind: TaskKind, data: DataConfig, model: ModelConfig) -> None:
        super().__init__(kind, data, model)
        folder = self.folders[0]
        self.language = find_language(folder, data.train_subset)
        self.languages = (self.language or NO_LANGUAGE,)
        self.vocabularies = (load_dictionary(folder, self.language),)
        stored = load_folder_subwords(folder)
        self.subwords = (stored.get(self.language or "", Whitespace()),)

    def open_blocks(self, folder: Path, split: str, block_size: int, *, is_training: bool) -> TokenBlocks:
        return open_blocks(folder, split, self.language, len(self.vocabularies[0]), block_size=block_size,
                           break_mode=self.data.blocks.break_mode, adds_numbered=is_training,
                           upsample_primary=self.data.upsample_primary if is_training else 1)


class LanguageModeling(TextTask):
    """One text, in blocks; perplexity judges."""

    @property
    def max_positions(self) -> tuple[int]:
        return (self.model_config.embedding.max_target_positions,)

    def open_split(self, folder: Path, split: str, *, is_training: bool) -> TokenBlocks:
        return self.open_blocks(folder, split, self.data.blocks.size, is_training=is_training)

    def build_model(self) -> Any:
        model = super().build_model()
        path = self.model_config.decoder.embed_path
        if path is not None:
            assert isinstance(model, DecoderOnly)
            fill_table_(model.target_embedding.table, Path(path), self.vocabularies[0])
        return model
