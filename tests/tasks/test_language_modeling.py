"""What a data folder with one side says about its text."""

import pytest

from lamina.cli import main
from lamina.config.batches import BlockConfig, DataConfig
from lamina.config.model import EmbeddingConfig, ModelConfig
from lamina.errors import DataError
from lamina.tasks.kinds import LanguageModelingKind
from lamina.text.subword import Bpe, Whitespace
from tiny import make_data, write_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("text")
    text = write_text(place / "text", 20)
    write_text(text, 6, seed=1, split="valid")
    for name, flags in (("plain", ["--trainpref", f"{text}/train.en", "--validpref", f"{text}/valid.en"]),
                        ("named", ["--source-lang", "en", "--trainpref", f"{text}/train", "--validpref", f"{text}/valid",
                                   "--subword", "bpe", "--vocab-size", "60"])):
        assert main(["preprocess", "--only-source", *flags, "--destdir", str(place / name), "--workers", "1"]) == 0
    return place


def open_task(folder, max_positions=64, **data):
    return LanguageModelingKind().open(DataConfig(data=str(folder), blocks=BlockConfig(size=8), **data),
                                       ModelConfig(embedding=EmbeddingConfig(max_target_positions=max_positions)))


def test_a_text_without_a_language(folder):
    task = open_task(folder / "plain")
    assert task.languages == ("text",)
    assert isinstance(task.subwords[0], Whitespace)
    assert task.max_positions == (64,)
    words = [word for line in (folder / "text" / "valid.en").read_text().splitlines() for word in [*line.split(), "</s>"]]
    corpus = task.corpus("valid")
    ids = [token for index in range(len(corpus)) for token in corpus[index].tolist()]
    assert [task.vocabularies[0].symbols[token] for token in ids] == words


def test_a_text_with_a_language_and_subwords(folder):
    task = open_task(folder / "named")
    assert task.languages == ("en",)
    assert isinstance(task.subwords[0], Bpe)
    assert len(task.train_corpus(1)) > 0


def test_numbered_parts_are_added_and_the_first_may_count_more(folder, tmp_path):
    for path in (folder / "plain").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    for ending in ("bin", "idx"):
        (tmp_path / f"train1.{ending}").write_bytes((tmp_path / f"valid.{ending}").read_bytes())
    train, valid = (len(open_task(folder / "plain").corpus(split)) for split in ("train", "valid"))
    assert len(open_task(tmp_path).train_corpus(1)) == train + valid
    assert len(open_task(tmp_path, upsample_primary=2).train_corpus(1)) == 2 * train + valid


def test_folders_take_turns(folder):
    task = open_task(f"{folder / 'plain'}:{folder / 'plain'}")
    assert [len(task.train_corpus(epoch)) for epoch in (1, 2)] == [len(task.corpus("train"))] * 2


def test_a_folder_of_pairs_is_none(tmp_path):
    with pytest.raises(DataError, match="one side of a pair"):
        open_task(make_data(tmp_path))
