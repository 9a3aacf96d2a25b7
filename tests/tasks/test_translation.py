"""What a data folder says about its texts."""

import pytest

from lamina.config.batches import DataConfig
from lamina.config.model import EmbeddingConfig, ModelConfig
from lamina.errors import DataError
from lamina.registry import register
from lamina.tasks.kinds import TranslationKind
from tiny import make_data


def open_task(embedding: EmbeddingConfig = EmbeddingConfig(), **data):  # noqa: B008, frozen
    return TranslationKind().open(DataConfig(**data), ModelConfig(embedding=embedding))


def test_every_task_has_presets():
    assert all(register.arch.of_task(task) for task in register.task)


def test_a_folder_of_pretokenized_text(tmp_path):
    folder = make_data(tmp_path)
    task = open_task(data=str(folder))
    assert task.languages == ("en", "xx")
    assert task.valid_splits == ("valid",)
    example = task.corpus("valid")[0]
    text = (tmp_path / "text" / "valid.xx").read_text().splitlines()[0]
    assert task.target_text(example.target) == text
    assert len(task.train_corpus(1)) == 20


def test_a_folder_of_raw_text_knows_how_to_join_pieces(tmp_path):
    folder = make_data(tmp_path, flags=("--joined-dictionary", "--subword", "bpe", "--vocab-size", "60"))
    task = open_task(data=str(folder), source_lang="xx", target_lang="en")
    example = task.corpus("valid")[2]
    assert any(piece.endswith("@@") for piece in task.vocabularies[1].decode(example.target))
    assert task.target_text(example.target) == (tmp_path / "text" / "valid.en").read_text().splitlines()[2]


@pytest.mark.parametrize("flags", [(), ("--subword", "sentencepiece", "--vocab-size", "60")])
def test_an_unknown_word_of_a_reference_matches_nothing(tmp_path, flags):
    task = open_task(data=str(make_data(tmp_path, flags=("--joined-dictionary", *flags))))
    translated, reference = task.target_text([5, 3, 2]), task.target_text([5, 3, 2], is_reference=True)
    assert translated != reference
    assert "UNKNOWNINREFERENCE" in reference


def test_numbered_parts_are_added_and_the_first_may_count_more(tmp_path):
    folder = make_data(tmp_path)
    for side in ("en", "xx"):
        for ending in ("bin", "idx"):
            (folder / f"train1.en-xx.{side}.{ending}").write_bytes((folder / f"valid.en-xx.{side}.{ending}").read_bytes())
    assert len(open_task(data=str(folder)).train_corpus(1)) == 26
    assert len(open_task(data=str(folder), upsample_primary=2).train_corpus(1)) == 46


def test_truncated_sources(tmp_path):
    folder = make_data(tmp_path)
    task = open_task(EmbeddingConfig(max_source_positions=4), data=str(folder), truncate_source=True)
    assert task.corpus("train").source_sizes.max() == 4


def test_an_empty_name():
    with pytest.raises(DataError, match="empty name"):
        open_task(data=":")
