"""A data folder with other targets to train on, such as a teacher's translations; all else is as it was."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lamina.data.binary import BinaryWriter
from lamina.data.corpus import Languages, open_corpus
from lamina.data.data_folder import MANIFEST_NAME, read_manifest, split_name, write_manifest
from lamina.files import file_hash, whole_folder
from lamina.text.vocabulary import UNK

TRAIN = "train"
OF_TRAINING = re.compile(rf"{TRAIN}\d*\.")  # SPLIT1, SPLIT2, ... are one with the split


def write_retargeted(data: Path, folder: Path, languages: Languages, vocabulary_sizes: tuple[int, int],
                     targets: Sequence[np.ndarray]) -> None:
    """`folder`, from `data` and a target for each training pair, in their order. Files that stay share their bytes, if the disk
    lets them."""
    corpus = open_corpus(data, TRAIN, languages, vocabulary_sizes, adds_numbered=True)
    assert len(targets) == len(corpus), "a target for each pair"
    manifest = read_manifest(data)
    with whole_folder(folder) as new:
        for path in sorted(data.iterdir()):
            if path.is_file() and not path.name.startswith(".") and path.name != MANIFEST_NAME \
                    and not OF_TRAINING.match(path.name):
                _link(path, new / path.name)
        splits: dict[str, Any] = {}
        files: dict[str, Any] = {}
        sides = ((languages.source, [corpus[index].source for index in range(len(corpus))]), (languages.target, targets))
        for (language, rows), size in zip(sides, vocabulary_sizes, strict=True):
            name = split_name(TRAIN, *languages, language)
            with BinaryWriter(new / name, size) as writer:
                for row in rows:
                    writer.write(row)
            splits[name] = {"split": TRAIN, "language": language, "sentences": len(rows), "tokens": sum(map(len, rows)),
                            "unknown": int(sum((row == UNK).sum() for row in rows)), "empty": 0}
            files |= {file: {"bytes": (new / file).stat().st_size, "sha256": file_hash(new / file)}
                      for file in (f"{name}.bin", f"{name}.idx")}
        if manifest is not None:
            kept = {section: {name: facts for name, facts in manifest.get(section, {}).items() if not OF_TRAINING.match(name)}
                    for section in ("splits", "files")}
            write_manifest(new, {**manifest, "splits": kept["splits"] | splits, "files": kept["files"] | files})


def _link(path: Path, copy: Path) -> None:
    try:
        os.link(path, copy)
    except OSError:
        shutil.copyfile(path, copy)
