"""Corpora and recipes for tests: seconds on a processor."""

import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import yaml

from tiny import write_text

TRAIN = {"arch": "tiny", "encoder-layers": 2, "decoder-layers": 2, "encoder-embed-dim": 16, "encoder-ffn-embed-dim": 32,
         "encoder-attention-heads": 2, "decoder-attention-heads": 2, "share-all-embeddings": True, "max-tokens": 256,
         "lr": 0.005, "warmup-updates": 4, "max-update": 9, "save-interval-updates": 3, "keep-interval-updates": 2,
         "no-epoch-checkpoints": True, "log-interval": 1, "distributed-world-size": 1}
RECIPE = {
    "about": "a recipe for tests", "data": "small", "seeds": [1, 2], "baseline": "plain",
    "tiers": {1: {"variants": ["plain"], "seeds": [1]}, 2: {}},
    "train": TRAIN, "average": {"num-update-checkpoints": 2}, "decode": {"beam": 2, "max-len-b": 5},
    "variants": {"plain": {}, "fused": {
        "train": {"surfacefusion": "att", "sf-gate": 0.8},
        "cuts": {"half": {"encoder-layers-to-keep": "every:2", "decoder-layers-to-keep": "0,"}}}},
}
CORPUS = {"languages": ["en", "xx"], "train": ["train.{lang}"], "valid": ["valid.{lang}"], "tests": {"news": "test.{lang}"},
          "preprocess": {"joined-dictionary": True}, "score": {"metric": "bleu,chrf"}}
LM_TRAIN = {"task": "language_modeling", "arch": "tiny_lm", "decoder-layers": 2, "decoder-embed-dim": 16,
            "decoder-ffn-embed-dim": 32, "decoder-attention-heads": 2, "tokens-per-sample": 16, "max-tokens": 64,
            "max-update": 4, "warmup-updates": 2, "no-epoch-checkpoints": True, "log-interval": 1, "distributed-world-size": 1}
LM_RECIPE = {"data": "text", "train": LM_TRAIN, "model": "checkpoint_last.pt",
             "cuts": {"first": {"decoder-layers-to-keep": "0,"}, "searched": {"search": {"decoder-layers": 1}}}}
LM_CORPUS = {"languages": [], "train": ["train.en"], "valid": ["valid.en"], "tests": {"test": "test.en"}}


def write_recipe(folder: Path, name: str = "small", recipe: dict = RECIPE, corpus: dict = CORPUS) -> Path:
    """The recipe's file, its corpus beside it, and downloads/ with the text."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    (folder / "data" / f"{recipe['data']}.yaml").write_text(yaml.safe_dump(corpus))
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    for number, split in enumerate(("train", "valid", "test")):
        write_text(folder / "downloads", 40 if split == "train" else 6, seed=number, split=split)
    return path


# -- small files of the form in which corpora are downloaded

NUM_PAIRS = 24


def sentence(language, number):
    return f"{language} Sentence number {number} says: \"it's (only) a test\" & ends."


def content_of(member, language):
    """What a member of an archive looks like, by its name."""
    name = Path(member).name.removesuffix(".gz")
    lines = [sentence(language, number) for number in range(NUM_PAIRS)]
    if name.endswith(".m2"):
        return "".join(f"S This are test {number} .\nA 1 2|||R:VERB:SVA|||is|||REQUIRED|||-NONE-|||0\n\n"
                       for number in range(NUM_PAIRS))
    if name.endswith((".sgm", ".xml")):
        escaped = [line.replace("&", "&amp;") for line in lines]
        return "<doc>\n" + "".join(f'<seg id="{number}"> {line} </seg>\n' for number, line in enumerate(escaped)) + "</doc>\n"
    if name.startswith("train.tags."):
        return "<url>x</url>\n<title>" + lines[0] + "</title>\n" + "\n".join(lines[1:]) + "\n<keywords>y</keywords>\n"
    return "\n".join(lines) + "\n"


def write_downloads(folder, dataset):
    """Small files under the names of the official archives."""
    archives = {}
    tests = [place for test in dataset.tests for places in (test.source, *test.references, (test.m2,)) for place in places
             if place]
    for place in [*dataset.train, *dataset.valid, *tests]:
        for side, language in enumerate(dataset.languages or ("en",)):
            filled = place.replace("{lang}", language).replace("{side}", ("src", "ref")[side])
            names, _, members = filled.rpartition("!")
            member = members.split("|")[-1]  # the first is what most have; the last must be found too
            data = content_of(member, language).encode()
            archives.setdefault(names.split("|")[0], {})[member] = gzip.compress(data) if member.endswith(".gz") else data
    for archive, members in archives.items():
        for member, data in members.items() if not archive else ():
            (folder / member).parent.mkdir(parents=True, exist_ok=True)
            (folder / member).write_bytes(data)
        if archive.endswith(".zip"):
            with zipfile.ZipFile(folder / archive, "w") as file:
                for member, data in members.items():
                    file.writestr(member, data)
        elif archive:
            mode = "w:xz" if archive.endswith("xz") else "w" if archive.endswith("tar") else "w:gz"
            with tarfile.open(folder / archive, mode) as file:
                for member, data in members.items():
                    info = tarfile.TarInfo(f"wrapped/{member}")
                    info.size = len(data)
                    file.addfile(info, io.BytesIO(data))
