"""`lamina.prepare`: sentences from Python, or from files, as a data folder; and what a script reads from one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from lamina.api.keyword_options import config_of, import_parts
from lamina.api.outputs import parse_device, warn_in_python
from lamina.config.batches import BatchConfig, DataConfig
from lamina.config.model import ModelConfig
from lamina.config.preprocess_options import PreprocessConfig
from lamina.data.batching import AnyBatch
from lamina.data.data_folder import read_manifest
from lamina.data.feed import Feed
from lamina.errors import DataError
from lamina.interop.any_format import texts_like
from lamina.preprocess.folder_summary import summary, warnings
from lamina.preprocess.pipeline import make_data_folder
from lamina.registry import first_task
from lamina.tasks.base import Task
from lamina.text.subword import Subword
from lamina.text.vocabulary import Vocabulary
from lamina.traits import DECODER_ONLY, PAIRS

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lamina.api.option_types import PrepareOptions

# Sentence pairs, sentences, rows of a table such as a datasets.Dataset, or files: a pair of them, or one.
Texts = (Iterable[tuple[str, str]] | Iterable[str] | Iterable[Mapping[str, object]] | tuple[str | Path, str | Path] | Path)

NAMES = ("source", "target")  # of sides whose languages were not named
FROM_PYTHON = "(sentences given to lamina.prepare)"


class Data:
    """A data folder, made by `lamina.prepare`, `lamina preprocess` or fairseq.

    Its name may be given to every command; `path`, `languages`, `vocabularies` and `subwords` say what it holds.

    >>> data = lamina.Data("data")
    >>> data.languages, data.splits
    (('en', 'xx'), ('train', 'valid'))
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise DataError(f"there is no data folder {self.path}. lamina.prepare or `lamina preprocess` makes one.")
        self.summary: tuple[str, ...] = ()  # of lamina.prepare: what was counted
        has_pairs = any(self.path.glob("*.*-*.*.idx"))
        self._kind = first_task(PAIRS) if has_pairs else first_task(DECODER_ONLY)
        self._task = self.open(ModelConfig())

    def open(self, config: ModelConfig, task: str | None = None) -> Task:
        """The folder as a task of this name sees it, for models of this configuration."""
        from lamina.registry import register

        return register.task[task or self._kind]().open(DataConfig(data=str(self.path)), config)

    @property
    def languages(self) -> tuple[str, ...]:
        """Of the sides: source and target, or one of a text."""
        return self._task.languages

    @property
    def vocabularies(self) -> tuple[Vocabulary, ...]:
        """The dictionaries of the sides."""
        return self._task.vocabularies

    @property
    def subwords(self) -> tuple[Subword, ...]:
        """How text becomes pieces on either side."""
        return self._task.subwords

    @property
    def splits(self) -> tuple[str, ...]:
        """train, valid and so on."""
        return tuple(sorted({path.name.partition(".")[0] for path in self.path.glob("*.idx")}))

    def batches(self, split: str = "train", *, max_tokens: int | None = None, batch_size: int | None = None, seed: int = 1,
                epoch: int = 1, shuffle: bool | None = None, config: ModelConfig | None = None,
                device: torch.device | str = "cpu") -> Iterator[AnyBatch]:
        """The batches of an epoch, as `lamina train` makes them, for a training loop of your own.

        Arguments:
            split: train, valid and so on.
            max_tokens: tokens of a batch at most, the longer side counted with its padding; 4096 if batch_size is not given
                either. What is longer is left out.
            batch_size: sentences of a batch at most.
            seed: decides the order, where batches are shuffled.
            epoch: likewise: each has an order of its own.
            shuffle: those of train, if left out.
            config: of the model, whose longest input counts.
            device: where the tensors go.

        Returns:
            An iterator over batches; `model(*batch.inputs)` and `batch.target` fit together.

        >>> next(data.batches(max_tokens=64)).source.dim()
        2
        """
        limits = BatchConfig(max_tokens=max_tokens or (None if batch_size else 4096), max_sentences=batch_size)
        task = self.open(config or ModelConfig())
        is_shuffled = split == "train" if shuffle is None else shuffle
        feed = Feed(task.open_split(self.path, split, is_training=split == "train"), seed=seed, limits=limits,
                    max_positions=task.max_positions, device=parse_device(device), is_shuffled=is_shuffled)
        return feed.batches(epoch)

    def __fspath__(self) -> str:
        return str(self.path)

    def __repr__(self) -> str:
        sizes = " and ".join(str(len(vocabulary)) for vocabulary in self.vocabularies)
        counts = {facts["split"]: facts["sentences"] for facts in (read_manifest(self.path) or {}).get("splits", {}).values()}
        shown = ", ".join(f"{split} {counts[split]} sentences" if split in counts else split for split in self.splits)
        return f"Data({str(self.path)!r}, {' -> '.join(self.languages)}, {shown}, {sizes} symbols)"


def prepare(train: Texts, valid: Texts | None = None, test: Texts | None = None, *, out: str | Path = "data-bin",
            source_lang: str | None = None, target_lang: str | None = None, user_dir: str | Path = "",
            **options: Unpack[PrepareOptions]) -> Data:
    """Turn sentences into a data folder, as `lamina preprocess` does.

    Arguments:
        train: what dictionaries and subwords are learned from: a list or generator of sentence pairs, a pair of file names, or
            a `datasets.Dataset` or a table of pandas or polars (with a column `translation`, two columns named by the
            languages, or two columns at all). For models of one text: sentences, one file as a Path, or a table with a column
            `text`.
        valid: likewise, the same columns; what validation reads.
        test: likewise; what `lamina generate` reads.
        out: the folder to write. Splits that are there already are replaced; one that stays has to fit.
        source_lang: the language of the source. If left out, files and columns name it; otherwise it is "source".
        target_lang: likewise.
        user_dir: a file or folder that registers parts of your own.
        options: those of `lamina preprocess`, with underscores: `subword="sentencepiece", vocab_size=8000`.

    Returns:
        The folder, as `lamina.train` takes it.

    >>> pairs = [("the old boat", "le vieux bateau"), ("the moon", "la lune")]
    >>> lamina.prepare(pairs, valid=pairs, out="small", workers=1).splits
    ('train', 'valid')
    """
    import_parts(user_dir or ())
    folder = Path(out)
    given = {name: texts for name, texts in (("train", train), ("valid", valid), ("test", test)) if texts is not None}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as name:
        spooled = Path(name)
        opened = {"train": _opened(train, "train", source_lang, target_lang)}
        languages, columns = opened["train"].languages, opened["train"].columns
        for split, texts in given.items():
            opened[split] = opened.get(split) or _opened(texts, split, source_lang, target_lang, columns)
            _check_sides(languages, opened[split].languages, split)
        for split, rows in opened.items():
            _spool(rows, languages, split, spooled)
        sides = ({"source_lang": languages[0], "target_lang": languages[1]} if len(languages) == 2 else
                 {"source_lang": languages[0] or None, "only_source": True})
        # A text without a language has its prefix as the whole name.
        prefixes = {"trainpref": spooled / "train", **{f"{split}pref": spooled / split for split in opened if split != "train"}}
        config = config_of("preprocess", PreprocessConfig, {**options, **sides, **prefixes, "destdir": str(folder)})
        report = make_data_folder(config, told=dict.fromkeys(prefixes, FROM_PYTHON), like=texts_like(config, warn_in_python))
    for line in warnings(report, config):
        warn_in_python(line)
    data = Data(folder)
    data.summary = tuple(line.removeprefix("| ") for line in summary(report))
    return data


class _Rows(NamedTuple):
    languages: tuple[str, ...]
    lines: Iterator[tuple[str, ...]]
    columns: tuple[str, ...] = ()  # of a table: those of the sides


def _check_sides(languages: tuple[str, ...], own: tuple[str, ...], split: str) -> None:
    """Of a split against those of train."""
    if len(own) != len(languages):
        raise DataError(f"train has {len(languages)} side{'s' if len(languages) > 1 else ''}, and {split} has {len(own)}.")
    if own != languages and NAMES not in (own, languages) and "" not in own:
        raise DataError(f"train is {' -> '.join(languages)}, and {split} is {' -> '.join(own)}: give both in the same order.")


def _opened(texts: Texts, split: str, source_lang: str | None, target_lang: str | None,
            columns: tuple[str, ...] = ()) -> _Rows:
    """As rows of one or two sentences; of a table by these columns, if it has them."""
    named = tuple(given or name for given, name in zip((source_lang, target_lang), NAMES, strict=True))
    if isinstance(texts, (str, bytes)):
        raise DataError(f"{split} is one string. Give a list of sentence pairs, a pair of file names, or a Path.")
    if isinstance(texts, Path):
        return _Rows((source_lang or "",), ((line,) for line in _file_lines(texts)))
    if isinstance(texts, tuple) and len(texts) == 2 and all(isinstance(side, (str, Path)) for side in texts):
        return _files([Path(side) for side in texts], source_lang, target_lang)  # type: ignore[arg-type]
    if isinstance(texts, Mapping):
        raise DataError(f"{split} is a {type(texts).__name__} of {', '.join(map(str, list(texts)[:5]))}. Give one split of it, "
                        "or pairs: zip(sources, targets).")
    try:
        rows = _rows_of(texts)
    except TypeError:
        raise DataError(f"{split} is a {type(texts).__name__}, which cannot be read row by row.") from None
    first = next(rows, None)
    if first is None:
        raise DataError(f"{split} has no sentences.")
    rows = chain([first], rows)  # type: ignore[list-item]
    if isinstance(first, Mapping):
        return _columns(first, rows, split, source_lang, target_lang, columns)  # type: ignore[arg-type]
    if isinstance(first, str):
        return _Rows((source_lang or "",), ((row,) for row in rows))  # type: ignore[misc]
    return _Rows(named, rows)  # type: ignore[arg-type]


def _rows_of(texts: object) -> Iterator[object]:
    """Of a table of pandas or polars, which iterate over columns, rows by name; of anything else what it gives."""
    if hasattr(texts, "itertuples") and hasattr(texts, "columns"):
        names = [str(name) for name in texts.columns]
        return (dict(zip(names, row, strict=True)) for row in texts.itertuples(index=False, name=None))
    if hasattr(texts, "iter_rows"):
        return iter(texts.iter_rows(named=True))
    return iter(texts)  # type: ignore[call-overload]


def _files(paths: list[Path], source_lang: str | None, target_lang: str | None) -> _Rows:
    endings = [path.suffix.removeprefix(".") for path in paths]
    known = endings if all(endings) and endings[0] != endings[1] else NAMES
    languages = tuple(given or name for given, name in zip((source_lang, target_lang), known, strict=True))
    sides = [_file_lines(path) for path in paths]

    def rows() -> Iterator[tuple[str, ...]]:
        number = 0
        while True:
            pair = [next(side, None) for side in sides]
            if pair == [None, None]:
                return
            if None in pair:
                shorter, longer = paths if pair[0] is None else paths[::-1]
                raise DataError(f"{shorter} ends after line {number}, and {longer} has more: line N of one must translate "
                                "line N of the other.")
            number += 1
            yield tuple(pair)  # type: ignore[arg-type]

    return _Rows(languages, rows())


def _file_lines(path: Path) -> Iterator[str]:
    try:
        file = path.open(encoding="utf-8", newline="\n")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None

    def lines() -> Iterator[str]:
        with file:
            try:
                for line in file:
                    yield line.removesuffix("\n")
            except UnicodeDecodeError as error:
                raise DataError(f"{path} is not UTF-8: {error.reason}.") from None

    return lines()


def _columns(first: Mapping[str, object], rows: Iterator[Mapping[str, object]], split: str, source_lang: str | None,
             target_lang: str | None, columns: tuple[str, ...]) -> _Rows:
    """A table such as a datasets.Dataset; those of train, if they are here too."""
    inner = first.get("translation")
    if isinstance(inner, Mapping):
        first, rows = inner, (row["translation"] for row in rows)  # type: ignore[misc]
    names = list(first)
    wanted = (source_lang, target_lang)
    if columns and all(name in first for name in columns):
        sides: tuple[str, ...] = columns
    elif all(name in first for name in wanted):
        sides = wanted  # type: ignore[assignment]
    elif len(names) == 2 and "text" not in names:
        sides = tuple(names)
        if source_lang == sides[1] or target_lang == sides[0]:
            sides = sides[::-1]
    elif "text" in names or len(names) == 1:
        sides = ("text",) if "text" in names else (names[0],)
    else:
        raise DataError(f"{split} has the columns {', '.join(names)}: which are the two sides? Name them with source_lang and "
                        "target_lang, or keep two columns.")
    if len(sides) == 1:
        return _Rows((source_lang or "",), ((row[sides[0]],) for row in rows), sides)  # type: ignore[misc]
    languages = tuple(given or side for given, side in zip(wanted, sides, strict=True))
    return _Rows(languages, ((row[sides[0]], row[sides[1]]) for row in rows), sides)  # type: ignore[misc]


def _spool(rows: _Rows, languages: tuple[str, ...], split: str, folder: Path) -> None:
    """Write rows as the files that preprocessing reads, one for each side."""
    paths = [folder / (f"{split}.{language}" if language else split) for language in languages]
    files = [path.open("w", encoding="utf-8", newline="\n") for path in paths]
    try:
        for number, row in enumerate(rows.lines, start=1):
            if not isinstance(row, (tuple, list)) or len(row) != len(files):
                raise DataError(f"row {number} of {split} is {repr(row)[:60]}; expected "
                                f"{'a sentence' if len(files) == 1 else 'a pair of sentences'}.")
            for file, line in zip(files, row, strict=True):
                if not isinstance(line, str):
                    raise DataError(f"row {number} of {split} holds a {type(line).__name__} where a sentence belongs.")
                if "\n" in line:
                    raise DataError(f"row {number} of {split} has a line break in {line[:40]!r}: a sentence is one line. "
                                    "Replace it by a space, or split the row.")
                try:
                    file.write(f"{line}\n")
                except UnicodeEncodeError:
                    raise DataError(f"row {number} of {split} holds half a character, {line[:40]!r}, which UTF-8 cannot "
                                    "write.") from None
    finally:
        for file in files:
            file.close()
