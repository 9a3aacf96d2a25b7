"""Random and mutated bytes for every reader of files: each input loads, or is refused with an error of ours.

Never another exception, never a long wait, never more memory than the input is worth. `make fuzz` runs thousands for each.
"""

import base64
import io
import json
import os
import resource
import shutil
import signal
import struct
import tarfile
import tempfile
from contextlib import contextmanager, redirect_stderr, suppress
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairseq_files import fixture_content
from golden_files import GOLDEN
from lamina.checkpoint.format import Checkpoint, save_checkpoint
from lamina.cli import main
from lamina.config.generate_options import ModelFiles
from lamina.config.parser import parse, resolve
from lamina.config.train_options import TrainConfig
from lamina.data.binary import BinaryReader
from lamina.data.data_folder import read_manifest
from lamina.errors import LaminaError
from lamina.fields import coerce, flatten
from lamina.init.admin_profile import read_profile
from lamina.init.pretrained import fill_table_
from lamina.interop.any_format import load_any
from lamina.interop.exported_folder import write_folder
from lamina.interop.fairseq_file import DictionaryPlaces
from lamina.models.build import build_model
from lamina.parts.residuals import Adaptive
from lamina.recipes.dataset import read_dataset
from lamina.recipes.plan import Places, plan_data
from lamina.recipes.recipe_file import read_recipe
from lamina.recipes.results import read_rows
from lamina.recipes.run_figures import comparison_figures, score_figures
from lamina.recipes.runner import Wishes, plan_all
from lamina.recipes.sources import read_place
from lamina.text.subword import Whitespace, learn_subword, load_subwords, subword_from_dict, subword_to_dict
from lamina.text.vocabulary import Vocabulary
from tiny import VOCABULARY_SIZE, tiny_config, write_text

# For each reader; `make fuzz` asks for 2,000.
INPUTS = int(os.environ.get("LAMINA_FUZZ_INPUTS", "60"))
PATIENCE = 20  # seconds that no small file takes to read
MEMORY = 2**30  # bytes that none needs

FUZZ = settings(max_examples=INPUTS, deadline=None, derandomize="LAMINA_FUZZ_INPUTS" not in os.environ, database=None,
                suppress_health_check=list(HealthCheck))
# Numbers that sizes and offsets should not have.
EVIL_NUMBERS = [0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**60, 2**63 - 1, 2**63, 2**64 - 1]
EVIL_WORDS = [b"\x00", b"\n", b"../", b"/etc/passwd", b"{", b"[", b"}", b"]", b"'", b'"', b"nan", b"1e999", b"-1", b"9" * 5000,
              b"[" * 3000, b"&a [*a,*a]", b"!!python/object/apply:os.system ['x']", "\u0661\u2028\ufeff".encode()]


@st.composite
def mutated(draw, *seeds):
    """One of some good contents with a few edits, or anything at all."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=300))
    content = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(content)))
        match draw(st.sampled_from(["byte", "bytes", "number", "word", "cut", "delete", "repeat"])):
            case "byte":
                content[place : place + 1] = bytes([draw(st.integers(0, 255))])
            case "bytes":
                content[place:place] = draw(st.binary(max_size=20))
            case "number":
                content[place : place + 8] = struct.pack("<Q", draw(st.sampled_from(EVIL_NUMBERS)))
            case "word":
                content[place:place] = draw(st.sampled_from(EVIL_WORDS))
            case "cut":
                del content[place:]
            case "delete":
                del content[place : place + draw(st.integers(1, 50))]
            case "repeat":
                content[place:place] = content[place : place + draw(st.integers(1, 50))]
    return bytes(content)


@contextmanager
def bounded():
    """Time and memory end, with an error that is none of ours."""
    def too_long(*_):
        raise TimeoutError("reading took too long")

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before, handler = resource.getrlimit(resource.RLIMIT_AS), signal.signal(signal.SIGALRM, too_long)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def reads_or_refuses(read):
    with bounded(), suppress(LaminaError):
        read()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


def seeds_of(build):
    """The good contents that mutations begin with, made once, when the tests are collected."""
    with tempfile.TemporaryDirectory() as folder:
        return build(Path(folder))


# -- data folders

def _data_folder(folder):
    text = write_text(folder / "text", 12)
    with redirect_stderr(io.StringIO()):
        assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--destdir", str(folder / "data"),
                     "--workers", "1", "--subword", "bpe", "--vocab-size", "60", "--joined-dictionary"]) == 0
    return {path.name: path.read_bytes() for path in (folder / "data").iterdir()}


DATA = seeds_of(_data_folder)
IDX, BIN = "train.en-xx.en.idx", "train.en-xx.en.bin"


@FUZZ
@given(index=mutated(DATA[IDX]), content=st.one_of(st.just(DATA[BIN]), mutated(DATA[BIN])))
def test_index_and_ids(folder, index, content):
    (folder / "x.idx").write_bytes(index)
    (folder / "x.bin").write_bytes(content)

    def read():
        reader = BinaryReader(folder / "x")
        assert sum(len(reader[number]) for number in range(len(reader))) == reader.num_tokens
        _ = reader.tokens

    reads_or_refuses(read)


@FUZZ
@given(content=mutated(DATA["dict.en.txt"], b"a 1\nb 2 #fairseq:overwrite\n"))
def test_dictionary(folder, content):
    (folder / "dict.txt").write_bytes(content)

    def read():
        vocabulary = Vocabulary.load(folder / "dict.txt")
        assert Vocabulary.from_text(vocabulary.to_text()).symbols == vocabulary.symbols

    reads_or_refuses(read)


@FUZZ
@given(manifest=mutated(DATA["manifest.json"]))
def test_manifest(folder, manifest):
    """Also when preprocess adds to the folder that it belongs to."""
    (folder / "manifest.json").write_bytes(manifest)
    reads_or_refuses(lambda: read_manifest(folder))


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(
    ["bpe", "sentencepiece", "moses", "whitespace", "../../x", "/etc/passwd", "subword.en.codes"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
        st.sampled_from(["kind", "file", "inner", "language", "model", "format", "files", "splits", "vocabularies", "en",
                         "../x"]), inner, max_size=5), max_leaves=12)


@FUZZ
@given(described=st.one_of(mutated(DATA["subwords.json"]), JSON.map(lambda value: json.dumps(value).encode())),
       codes=st.one_of(st.just(DATA["subword.en.codes"]), mutated(DATA["subword.en.codes"])))
def test_subwords_of_a_folder(folder, described, codes):
    (folder / "subwords.json").write_bytes(described)
    (folder / "subword.en.codes").write_bytes(codes)

    def read():
        for subword in load_subwords(folder).values():
            subword.decode(subword.encode("the small boat"))

    reads_or_refuses(read)


@FUZZ
@given(manifest=JSON, subwords=JSON)
def test_preprocess_into_a_strangers_folder(folder, manifest, subwords):
    """Names in files that are there already lead nowhere else, and nothing outside the folder is written."""
    target = folder / "outer" / "target"
    shutil.rmtree(folder / "outer", ignore_errors=True)
    target.mkdir(parents=True)
    (target / "manifest.json").write_text(json.dumps({"format": 1, **(manifest if isinstance(manifest, dict) else {})}))
    (target / "subwords.json").write_text(json.dumps(subwords))
    text = folder / "text"
    if not text.exists():
        write_text(text, 3)

    def read():
        code = main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{text}/train", "--destdir", str(target),
                     "--workers", "1"])
        assert code in (0, 2)

    reads_or_refuses(read)
    assert os.listdir(folder / "outer") == ["target"]


# -- subword models

def _sentencepiece(folder):
    lines = (write_text(folder, 30) / "train.en").read_text().splitlines()
    return learn_subword("sentencepiece", lines, 40).to_bytes()


SENTENCEPIECE = seeds_of(_sentencepiece)


@FUZZ
@given(kind=st.sampled_from(["sentencepiece", "bpe", "whitespace", "moses", "?"]),
       model=mutated(SENTENCEPIECE, DATA["subword.en.codes"]), language=st.sampled_from(["en", "", "../x", None, 3]))
def test_subword_model(kind, model, language):
    plain = {"kind": kind, "model": base64.b64encode(model).decode()}
    if kind == "moses":
        plain = {"kind": kind, "language": language, "inner": {**plain, "kind": "bpe"}}

    def read():
        subword = subword_from_dict(plain)
        subword.decode(subword.encode("the small boat, 7 \u00e9"))

    reads_or_refuses(read)


@FUZZ
@given(plain=JSON)
def test_description_of_a_subword_model(plain):
    reads_or_refuses(lambda: subword_from_dict(plain))


# -- checkpoints

def _checkpoint():
    torch.manual_seed(0)
    words = [f"w{number}" for number in range(VOCABULARY_SIZE - 4)]
    text = Vocabulary(words, [1] * len(words)).to_text()
    model = build_model(tiny_config(num_layers=1), VOCABULARY_SIZE, VOCABULARY_SIZE)
    subword = subword_to_dict(Whitespace())
    return Checkpoint(config={"task": "translation", **flatten(tiny_config(num_layers=1))}, languages=("en", "xx"),
                      dictionaries=(text, text), subwords=(subword, subword),
                      weights={name: value.detach() for name, value in model.named_parameters()},
                      training={"progress": {"updates": 3}}, metrics={"loss": 1.0})


def _checkpoint_files(folder):
    checkpoint = _checkpoint()
    save_checkpoint(folder / "sealed.pt", checkpoint)
    content = {"lamina_format": 1, **vars(checkpoint)}
    torch.save(content, folder / "open.pt")
    small = {**content, "weights": {}, "dictionaries": ("", ""), "config": {"task": "translation"}}
    torch.save(small, folder / "small.pt")
    torch.save(small, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.save(fixture_content("transformer_postln"), folder / "fairseq.pt")
    return [(folder / name).read_bytes() for name in ("sealed.pt", "open.pt", "small.pt", "legacy.pt", "fairseq.pt")]


CHECKPOINTS = seeds_of(_checkpoint_files)


def use(path):
    checkpoint = load_any(path, places=DictionaryPlaces((path.parent,)))
    checkpoint.vocabularies()
    checkpoint.subword_models()
    checkpoint.model_config()


@FUZZ
@given(content=mutated(*CHECKPOINTS))
def test_checkpoint(folder, content):
    (folder / "x.pt").write_bytes(content)
    reads_or_refuses(lambda: use(folder / "x.pt"))


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
    | st.just(torch.zeros(2)) | st.sampled_from(["translation", "en", "0,1 of 3", "\x00"]),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner) | st.dictionaries(
        st.sampled_from(["task", "kind", "model", "encoder-layers", "progress", "", "x"]) | st.integers(), inner, max_size=3),
    max_leaves=6)
FIELDS = ("lamina_format", *vars(_checkpoint()))


@FUZZ
@given(changes=st.dictionaries(st.sampled_from([*FIELDS, *(f"config {name}" for name in flatten(tiny_config()))]), PLAIN,
                               min_size=1, max_size=3))
def test_fields_of_a_checkpoint(folder, changes):
    """Well-formed files whose content is not what it should be."""
    content = {"lamina_format": 1, **vars(_checkpoint())}
    for name, value in changes.items():
        if name.startswith("config "):
            content["config"] = {**content["config"], name.removeprefix("config "): value} if isinstance(
                content["config"], dict) else value
        else:
            content[name] = value
    torch.save(content, folder / "fields.pt")
    reads_or_refuses(lambda: use(folder / "fields.pt"))


@FUZZ
@given(changes=st.dictionaries(st.sampled_from(["args", "model", "cfg", "optimizer_history", "extra_state",
                                                "last_optimizer_state"]), PLAIN, min_size=1, max_size=2))
def test_fields_of_a_foreign_checkpoint(folder, changes):
    torch.save({**fixture_content("transformer_postln"), **changes}, folder / "foreign.pt")
    reads_or_refuses(lambda: use(folder / "foreign.pt"))


def _exported(folder):
    write_folder(folder, _checkpoint())
    described = json.loads((folder / "config.json").read_text())
    del described["files"]  # the checksums, which would keep changes from the readers
    (folder / "config.json").write_text(json.dumps(described))
    return {path.name: path.read_bytes() for path in folder.iterdir()}


EXPORTED = seeds_of(_exported)


@FUZZ
@given(changes=st.dictionaries(st.sampled_from(sorted(EXPORTED)), mutated(*EXPORTED.values()), max_size=1),
       described=st.none() | st.dictionaries(st.sampled_from(["lamina_format", "config", "languages", "training", "metrics",
                                                              "versions"]), JSON, max_size=2))
def test_exported_folder(folder, changes, described):
    target = folder / "exported"
    target.mkdir(exist_ok=True)
    for name, content in (EXPORTED | changes).items():
        (target / name).write_bytes(content)
    if described is not None:
        whole = json.loads(EXPORTED["config.json"]) | described
        (target / "config.json").write_text(json.dumps(whole))
    reads_or_refuses(lambda: use(target))


# -- text that people write

RECIPE = b"arch: transformer_iwslt_de_en\nshare-all-embeddings: true\nadam-betas: [0.9, 0.98]\nmax-tokens: 4096\ndata: x\n"


@FUZZ
@given(content=mutated(RECIPE, b"a: &x [1]\nb: *x\n", b"max_tokens: 5\nno-epoch-checkpoints: yes\n"))
def test_recipe(folder, content):
    (folder / "recipe.yaml").write_bytes(content)

    def read():
        given_values, _ = parse("lamina train", TrainConfig, "", ["--config", str(folder / "recipe.yaml")])
        resolve(TrainConfig, given_values)

    reads_or_refuses(read)


WHOLE_RECIPE = b"""about: x
data: pooled_en_de
seeds: [1, 2]
tiers: {1: {variants: [a], seeds: [1]}, 2: {}}
baseline: a
train: {max-tokens: 100, max-update: 5, adam-betas: [0.9, 0.98]}
average: {num-epoch-checkpoints: 2}
decode: {beam: 2}
cuts: {half: {encoder-layers-to-keep: "every:2"}, found: {search: {decoder-layers: 2}}}
variants: {a: {}, b: {train: {dropout: 0.1}}}
grid: [{x: {lr: 0.1}, y: null}, {z: {lr: 0.2}}]
analyze: {depth: {repeats: 1}}
stalled-above: 9.0
"""
CORPUS = b"""languages: [en, de]
train: ["a.tgz!x.{lang}|y.{lang}"]
valid: {every: 5}
tests: {t: "b.zip!{side}.{lang}.sgm", u: {source: s, references: [r], score: {metric: bleu}}, v: {source: s, m2: m}}
clean: {tokenize: true, max-length: 10, max-ratio: 1.5}
preprocess: {joined-dictionary: true}
score: {metric: "bleu,chrf"}
"""


@FUZZ
@given(content=mutated(WHOLE_RECIPE, WHOLE_RECIPE[:200]))
def test_whole_recipe(folder, content):
    (folder / "recipe.yaml").write_bytes(content)

    def read():
        recipe = read_recipe(folder / "recipe.yaml")
        plan_all(recipe, Places(folder, folder, folder), Wishes(tuple(recipe.runs()[:4])))

    reads_or_refuses(read)


@FUZZ
@given(content=mutated(CORPUS))
def test_corpus_description(folder, content):
    (folder / "corpus.yaml").write_bytes(content)

    def read():
        corpus = read_dataset(folder / "corpus.yaml")
        plan_data(corpus, Places(folder, folder, folder))
        corpus.archives  # noqa: B018

    reads_or_refuses(read)


RESULT = b'{"kind": "run", "recipe": "r", "variant": "v", "cut": "", "seed": 1, "budget": 1.0, "figures": {}}\n'


@FUZZ
@given(content=mutated(3 * RESULT))
def test_results_file(folder, content):
    (folder / "results.jsonl").write_bytes(content)
    reads_or_refuses(lambda: read_rows(folder / "results.jsonl"))


SCORED = (b'{"figures": {"bleu": 41.5, "ppl": 17.4, "word_ppl": "inf"}, "signatures": {"bleu": "tok:13a"}, '
          b'"compared": {"bleu": {"score": 41.5, "baseline": 41.0, "difference": 0.5, "p": 0.03}}}')


@FUZZ
@given(content=mutated(SCORED))
def test_figures_file(folder, content):
    (folder / "figures.json").write_bytes(content)
    reads_or_refuses(lambda: (score_figures(folder / "figures.json"), comparison_figures(folder / "figures.json")))


SEGMENTS = b'<srcset><doc>\n<seg id="1">one &amp; two</seg>\n<seg id="2">three\n</seg></doc></srcset>\n'


@FUZZ
@given(content=mutated(SEGMENTS))
def test_segments(folder, content):
    (folder / "x.sgm").write_bytes(content)
    reads_or_refuses(lambda: list(read_place(folder, "x.sgm")))


def _tgz():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        info = tarfile.TarInfo("x.txt")
        info.size = 12
        archive.addfile(info, io.BytesIO(b"one\ntwo\nfou\n"))
    return buffer.getvalue()


@FUZZ
@given(content=mutated(_tgz()))
def test_archive_of_text(folder, content):
    (folder / "a.tgz").write_bytes(content)
    reads_or_refuses(lambda: list(read_place(folder, "a.tgz!x.txt")))


ADMIN_MODEL = build_model(tiny_config(init=Adaptive()), VOCABULARY_SIZE, VOCABULARY_SIZE)
PROFILE = "".join(f"{number} {1.5 + number}\n" for count in (4, 6) for number in range(1, count + 1)).encode()


@FUZZ
@given(content=mutated(PROFILE))
def test_profile(folder, content):
    (folder / "profile.ratio.init").write_bytes(content)
    reads_or_refuses(lambda: read_profile(folder / "profile.ratio.init", ADMIN_MODEL))


def test_the_profile_that_mutations_begin_with_is_good(folder):
    (folder / "good").write_bytes(PROFILE)
    read_profile(folder / "good", ADMIN_MODEL)


VOCABULARY = Vocabulary(["boat", "bird"], [1, 1])


@FUZZ
@given(content=mutated(b"2 16\nboat " + b" ".join([b"0.5"] * 16) + b"\nbird " + b" ".join([b"1"] * 16) + b"\n"))
def test_word_vectors(folder, content):
    (folder / "x.vec").write_bytes(content)
    table = ADMIN_MODEL.source_embedding.table
    reads_or_refuses(lambda: fill_table_(table, folder / "x.vec", VOCABULARY))


@FUZZ
@given(content=mutated(b"{'dropout': 0.1, 'encoder_layers': 3}", b"{}"))
def test_overrides_are_literals(content):
    reads_or_refuses(lambda: ModelFiles(path="x.pt", overrides=content.decode("utf-8", "replace")))


@FUZZ
@given(content=mutated(b"(0.9, 0.98)", b"1,2,3", b"[1, 2]"), kind=st.sampled_from([tuple[float, float], tuple[int, ...], int]))
def test_tuples_are_literals(content, kind):
    reads_or_refuses(lambda: coerce(kind, content.decode("utf-8", "replace"), "flag"))


def test_a_folder_of_the_references_still_reads(folder):
    shutil.copytree(GOLDEN / "databin_mmap" / "joined", folder / "golden")
    assert len(BinaryReader(next((folder / "golden").glob("*.idx")).with_suffix(""))) > 0
