"""From text files to a data folder: survey, segment and count, dictionaries, encode, move into place."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lamina import __version__
from lamina.config.preprocess_options import PreprocessConfig
from lamina.data.data_folder import (
    UNFINISHED_NAME,
    dictionary_name,
    move_into_place,
    read_manifest,
    split_name,
    staging,
    write_manifest,
)
from lamina.errors import DataError
from lamina.fields import flatten
from lamina.files import file_hash
from lamina.preprocess.encoding import (
    CountTask,
    SideTask,
    SplitReport,
    SplitTask,
    count_range,
    merge_counts,
    write_side,
)
from lamina.preprocess.line_blocks import TextFile, count_lines, file_size, split_ranges
from lamina.preprocess.segmentation import make_subwords, subword_kind
from lamina.preprocess.workers import Progress, Workers, available_cores, no_progress
from lamina.text.subword import Subword, load_subwords, model_files, save_subwords, subword_to_dict
from lamina.text.vocabulary import Vocabulary

T = TypeVar("T")

# Below this a pool takes longer to start than the work does.
MIN_BYTES_FOR_POOL = 4 << 20
RANGES_PER_WORKER = 4
MIN_RANGE_BYTES = 1 << 20
MAX_RANGE_BYTES = 16 << 20


@dataclass(frozen=True)
class SideReport:
    split: str
    language: str | None
    counts: SplitReport


@dataclass(frozen=True)
class FolderReport:
    """What the command tells the user."""

    vocabularies: dict[str | None, Vocabulary]
    subwords: dict[str | None, Subword]
    sides: list[SideReport]


class ModelTexts(NamedTuple):
    """One of each for every side of a model."""

    vocabularies: Sequence[Vocabulary]
    subwords: Sequence[Subword]


def make_data_folder(config: PreprocessConfig, progress: Progress = no_progress, told: Mapping[str, str] | None = None,
                     like: ModelTexts | None = None) -> FolderReport:
    """Read the text, write `config.data_folder`; on any error that folder is as it was before.

    `told` is what the manifest says of options instead, such as the names of files that will be gone; `like` is what --like
    names.
    """
    folder = Path(config.data_folder)
    files = find_files(config)
    num_bytes = sum(file.size for file in files)
    wanted = config.workers or available_cores()
    num_lines = check_alignment(files)
    given = _given_dictionaries(config) if like is None else _by_side(config, like.vocabularies)
    # The workers end before the staging folder goes: a straggler would write into it while it is being removed.
    with (_disk_errors(folder), staging(folder) as staged,
          Workers(wanted if num_bytes >= MIN_BYTES_FOR_POOL else 1) as workers):
        subwords = make_subwords(config, files, num_lines, progress) if like is None else _by_side(config, like.subwords)
        stems = _count(config, files, subwords, staged, workers, progress)
        vocabularies = _all_dictionaries(config, files, stems, given)
        sides = [] if config.dictionary.dict_only else _encode(config, files, stems, vocabularies, staged, workers)
        _write_companions(config, folder, staged, vocabularies, subwords, sides, told or {})
        move_into_place(staged, folder, obsolete=model_files(folder))
    return FolderReport(vocabularies, subwords, sides)


def find_files(config: PreprocessConfig) -> list[TextFile]:
    text = config.text
    prefixes = [("train", text.train_prefix)] if text.train_prefix else []
    if not config.dictionary.dict_only:
        for name, several in (("valid", text.valid_prefixes), ("test", text.test_prefixes)):
            prefixes += [(f"{name}{number or ''}", prefix) for number, prefix in enumerate(several)]
    paths = [(split, language, f"{prefix}.{language}" if language else prefix)
             for split, prefix in prefixes for language in config.languages]
    return [TextFile(split, language, path, file_size(path)) for split, language, path in paths]


def check_alignment(files: list[TextFile]) -> dict[TextFile, int]:
    """The number of lines of every file; both sides of a split must have the same."""
    num_lines = {file: count_lines(file.path) for file in files}
    for split in dict.fromkeys(file.split for file in files):
        sides = sorted((file for file in files if file.split == split), key=num_lines.__getitem__)
        shorter, longer = sides[0], sides[-1]
        if num_lines[shorter] != num_lines[longer]:
            raise DataError(
                f"the two sides of {split} do not match: {shorter.path} ends after line {num_lines[shorter]}, "
                f"{longer.path} has {num_lines[longer]} lines. Line N of one must translate line N of the other.")
    return num_lines


def _by_side(config: PreprocessConfig, of_model: Sequence[T]) -> dict[str | None, T]:
    if len(of_model) < len(config.languages):
        raise DataError(f"--like {config.like} is a model of one text, and these are pairs. Name a model of pairs, or add "
                        "--only-source.")
    return dict(zip(config.languages, of_model, strict=False))


def _given_dictionaries(config: PreprocessConfig) -> dict[str | None, Vocabulary]:
    """Read before the long work, so that a wrong file is noticed at once."""
    given, languages = config.dictionary, config.languages
    if given.is_joined:
        path = given.source_dict or given.target_dict
        return dict.fromkeys(languages, Vocabulary.load(path)) if path else {}
    paths = zip(languages, (given.source_dict, given.target_dict), strict=False)
    return {language: Vocabulary.load(path) for language, path in paths if path}


def _count(config: PreprocessConfig, files: list[TextFile], subwords: dict[str | None, Subword], staged: Path,
           workers: Workers, progress: Progress) -> dict[TextFile, tuple[str, ...]]:
    """Segment and number every file; where the results of its ranges lie."""
    parts = staged / "parts"
    parts.mkdir()
    limit, num_bytes = config.text.max_line_length, sum(file.size for file in files)
    # Several for each worker, so that they finish together; at most a fixed size, which bounds their memory.
    range_bytes = max(min(num_bytes // (RANGES_PER_WORKER * workers.count), MAX_RANGE_BYTES), MIN_RANGE_BYTES)
    tasks: list[CountTask] = []
    stems: dict[TextFile, tuple[str, ...]] = {}
    for file in files:
        ranges = split_ranges(file.path, file.size, limit, range_bytes)
        own = [CountTask(text, subwords[file.language], limit, str(parts / str(number)))
               for number, text in enumerate(ranges, start=len(tasks))]
        tasks += own
        stems[file] = tuple(task.stem for task in own)
    with progress("read the text", num_bytes) as advance:
        for number, _ in workers.results(count_range, tasks):
            advance(tasks[number].text.end - tasks[number].text.start)
    return stems


def _all_dictionaries(config: PreprocessConfig, files: list[TextFile], stems: dict[TextFile, tuple[str, ...]],
                      given: dict[str | None, Vocabulary]) -> dict[str | None, Vocabulary]:
    """Those that were given, the others counted on the training text."""
    wanted, languages = config.dictionary, config.languages
    train = {file.language: stems[file] for file in files if file.split == "train"}
    limits = dict(zip(languages, ((wanted.source_threshold, wanted.source_size),
                                  (wanted.target_threshold, wanted.target_size)), strict=False))
    found = dict(given)
    for group in [languages] if wanted.is_joined else [(language,) for language in languages]:
        if group[0] in given:
            continue
        threshold, max_size = limits[group[0]]
        counts = merge_counts(stem for language in group for stem in train[language])
        if not counts:
            raise DataError(f"the training text of {group[0] or 'this corpus'} has only empty lines.")
        vocabulary = Vocabulary.build(counts, threshold=threshold, max_size=max_size,
                                      padding_factor=wanted.padding_factor)
        found |= dict.fromkeys(group, vocabulary)
    return {language: found[language] for language in languages}


def _encode(config: PreprocessConfig, files: list[TextFile], stems: dict[TextFile, tuple[str, ...]],
            vocabularies: dict[str | None, Vocabulary], staged: Path, workers: Workers) -> list[SideReport]:
    text, languages = config.text, config.languages
    by_language = [[file for file in files if file.language == language] for language in languages]
    tasks = [SideTask(vocabularies[language], tuple(
        SplitTask(stems[file], str(staged / split_name(file.split, text.source_lang, text.target_lang, language)))
        for file in own)) for language, own in zip(languages, by_language, strict=True)]
    reports = [SideReport(file.split, file.language, counts) for number, counted in workers.results(write_side, tasks)
               for file, counts in zip(by_language[number], counted, strict=True)]
    order = {(file.split, file.language): place for place, file in enumerate(files)}
    return sorted(reports, key=lambda report: order[report.split, report.language])


def _write_companions(config: PreprocessConfig, folder: Path, staged: Path, vocabularies: dict[str | None, Vocabulary],
                      subwords: dict[str | None, Subword], sides: list[SideReport], told: Mapping[str, str]) -> None:
    """Dictionaries, subword models and the manifest, joined with what an earlier run left for other splits."""
    for language, vocabulary in vocabularies.items():
        vocabulary.save(staged / dictionary_name(language))
    named = {language or "": subword for language, subword in subwords.items()}
    _check_other_splits(folder, staged, named)
    earlier: dict[str, Any] = {}
    kept: dict[str, Subword] = {}
    with suppress(DataError):
        earlier = _still_there(read_manifest(folder), folder)
        kept = {language: subword for language, subword in load_subwords(folder).items()
                if (folder / dictionary_name(language)).exists()}
    save_subwords(staged, kept | named)
    hashes = {name: digest for side in sides for name, digest in side.counts.hashes.items()}
    hashes |= {path.name: file_hash(path) for path in staged.iterdir() if path.is_file() and path.name not in hashes}
    quick_sums = {name: digest for side in sides for name, digest in side.counts.quick_sums.items()}
    files = {name: {"bytes": (staged / name).stat().st_size, "sha256": digest}
             | ({"quick": quick_sums[name]} if name in quick_sums else {}) for name, digest in sorted(hashes.items())}
    write_manifest(staged, {
        "lamina": __version__,
        "vocabularies": earlier.get("vocabularies", {}) | {
            language or "": {"file": dictionary_name(language), "size": len(vocabulary), "digest": vocabulary.digest}
            for language, vocabulary in vocabularies.items()},
        "subwords": {language: subword_kind(subword) for language, subword in (kept | named).items()},
        "splits": earlier.get("splits", {}) | {Path(side.counts.prefix).name: _describe(side) for side in sides},
        "files": earlier.get("files", {}) | files,
        "options": flatten(config) | dict(told),
    })


def _still_there(manifest: dict[str, Any] | None, folder: Path) -> dict[str, Any]:
    """What an earlier manifest says of files that the folder still has; subword models are always written again."""
    manifest, models = manifest or {}, model_files(folder)
    files = {name: facts for name, facts in manifest.get("files", {}).items()
             if (folder / name).exists() and name not in models}
    splits = {name: facts for name, facts in manifest.get("splits", {}).items() if f"{name}.idx" in files}
    vocabularies = {name: facts for name, facts in manifest.get("vocabularies", {}).items() if facts.get("file") in list(files)}
    return {"files": files, "splits": splits, "vocabularies": vocabularies}


def _describe(side: SideReport) -> dict[str, Any]:
    counts = side.counts
    return {"split": side.split, "language": side.language, "sentences": counts.num_sentences,
            "tokens": counts.num_tokens, "unknown": counts.num_unknown, "empty": counts.num_empty}


def _check_other_splits(folder: Path, staged: Path, subwords: dict[str, Subword]) -> None:
    """Splits that are already there and stay must fit the dictionary and the subwords that come."""
    try:
        earlier: dict[str, Subword] = load_subwords(folder)
    except DataError:
        earlier = {}
    for language, subword in subwords.items():
        present = [path for path in folder.glob("*.idx") if path.stem.partition(".")[2].rpartition(".")[2] == language]
        others = sorted(path.stem for path in present if not (staged / path.name).exists())
        if not others:
            continue
        name = dictionary_name(language)
        if (folder / UNFINISHED_NAME).exists():
            raise DataError(f"{folder} is left over from a run that was stopped while it replaced files, {others[0]} "
                            "among them. Run that command again, or remove the folder.")
        old = folder / name
        has_new_ids = not old.exists() or old.read_bytes() != (staged / name).read_bytes()
        if has_new_ids or (language in earlier and subword_to_dict(earlier[language]) != subword_to_dict(subword)):
            what = f"another {name}" if has_new_ids else "another subword model"
            raise DataError(
                f"{folder} also holds {others[0]}, made with {what}, which would no longer fit. Choose another "
                "--destdir or remove the folder; to add to it, give its own --srcdict, --tgtdict and subword model.")


@contextmanager
def _disk_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DataError(f"the disk that holds {folder} is full. Free some space or choose another --destdir; "
                            "what was written so far is removed.") from None
        where = error.filename or folder
        raise DataError(f"{where}: {error.strerror or error}. Choose another --destdir, or check its "
                        "permissions.") from None
