import errno
import io
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lamina import console
from lamina.cli import main
from lamina.config.preprocess_options import PreprocessConfig
from lamina.data import data_folder
from lamina.data.binary import BinaryReader, BinaryWriter
from lamina.data.data_folder import UNFINISHED_NAME, read_manifest
from lamina.errors import ConfigError, DataError
from lamina.fields import build
from lamina.preprocess import encoding, line_blocks, pipeline, workers
from lamina.preprocess.pipeline import make_data_folder
from lamina.text.subword import Whitespace, load_subwords
from lamina.text.vocabulary import Vocabulary

ENGLISH = ["the small boat is red .", "she writes a letter", "", "the boat opens a door", "rain falls on the roof"] * 4
ROMANIAN = ["barca mică e roșie .", "ea scrie o scrisoare", "da", "barca deschide o ușă", "ploaia cade pe acoperiș"] * 4
FILES = ["dict.en.txt", "dict.ro.txt", *(f"train.en-ro.{language}.{ending}" for language in ("en", "ro")
                                         for ending in ("bin", "idx")), "manifest.json", "subwords.json"]


@pytest.fixture
def text(tmp_path):
    """Writes the sides of a prefix; returns the prefix."""
    def write(name="train", en=ENGLISH, ro=ROMANIAN):
        for language, side in (("en", en), ("ro", ro)):
            data = side if isinstance(side, bytes) else "".join(f"{line}\n" for line in side).encode()
            (tmp_path / f"{name}.{language}").write_bytes(data)
        return str(tmp_path / name)
    return write


@pytest.fixture
def destination(tmp_path):
    return tmp_path / "made" / "data-bin"


def configure(destination, prefix=None, **options):
    flat = {"source-lang": "en", "target-lang": "ro", "destdir": str(destination), "workers": 1}
    if prefix:
        flat["trainpref"] = prefix
    flat |= {name.replace("_", "-"): value for name, value in options.items()}
    return build(PreprocessConfig, flat, flat)


def make(*arguments, **options):
    return make_data_folder(configure(*arguments, **options))


def content(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def assert_nothing_left(destination):
    """Not even the folders on the way to it."""
    assert not destination.parent.exists()


# What it makes


def test_folder_holds_the_text_and_a_manifest(text, destination, capsys):
    assert main(["preprocess", "-s", "en", "-t", "ro", "--trainpref", text(), "--destdir", str(destination)]) == 0
    assert sorted(content(destination)) == sorted(FILES)
    vocabulary = Vocabulary.load(destination / "dict.en.txt")
    reader = BinaryReader(destination / "train.en-ro.en")
    assert [" ".join(vocabulary.decode(ids)) for ids in reader] == ENGLISH
    assert reader[2].tolist() == [vocabulary.eos]

    manifest = read_manifest(destination)
    assert manifest["splits"]["train.en-ro.en"] == {
        "split": "train", "language": "en", "sentences": 20, "tokens": 100, "unknown": 0, "empty": 4}
    assert manifest["vocabularies"]["en"] == {
        "file": "dict.en.txt", "size": len(vocabulary), "digest": vocabulary.digest}
    assert manifest["options"]["padding-factor"] == 8
    for name, facts in manifest["files"].items():
        assert facts == {"bytes": (destination / name).stat().st_size, "sha256": encoding.file_hash(destination / name)} | (
            {"quick": encoding.quick_sum(destination / name)} if name.endswith(".bin") else {})
    assert set(manifest["files"]) == set(FILES) - {"manifest.json"}

    out, err = capsys.readouterr()
    assert "| [en] train: 20 sentences, 100 tokens, 0.00 % unknown, 4 empty\n" in out
    assert out.endswith(f"| wrote {destination}\n")
    assert err == ""


def test_the_reference_command_runs_as_it_is(tmp_path, monkeypatch):
    for name in ("train/corpus", "dev/dev", "test/test"):
        (tmp_path / "RAW" / name).parent.mkdir(parents=True)
        for language, side in (("en", ENGLISH), ("ro", ROMANIAN)):
            (tmp_path / "RAW" / f"{name}.bpe.{language}").write_text("\n".join(side) + "\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    line = ("preprocess --source-lang en --target-lang ro --trainpref RAW/train/corpus.bpe --validpref RAW/dev/dev.bpe "
            "--testpref RAW/test/test.bpe --destdir DATA --joined-dictionary --workers 20")
    assert main(line.split()) == 0
    assert {name.partition(".")[0] for name in content("DATA") if name.endswith(".idx")} == {"train", "valid", "test"}


def test_unknown_words_of_a_given_dictionary(text, destination, tmp_path, capsys):
    (tmp_path / "dict").write_text("the 1\n")
    assert main(["preprocess", "-s", "en", "-t", "ro", "--trainpref", text(), "--srcdict", str(tmp_path / "dict"),
                 "--destdir", str(destination)]) == 0
    assert "became <unk>. The dictionary that was given may belong to another text" in capsys.readouterr().err
    assert main(["preprocess", "-s", "en", "-t", "ro", "--trainpref", text(), "--thresholdsrc", "-3", "--destdir", "x"]) == 2
    assert "--thresholdsrc is -3; it must be 0" in capsys.readouterr().err


def test_unknown_words_are_reported_with_advice(text, destination, capsys):
    valid = text("valid", ["the unseen boat", "<unk> is written out"], ["barca", "</s> <pad>"])
    main(["preprocess", "-s", "en", "-t", "ro", "--trainpref", text(), "--validpref", valid,
          "--destdir", str(destination)])
    out, err = capsys.readouterr()
    assert "| [en] valid: 2 sentences, 9 tokens, 33.33 % unknown\n" in out  # unseen, written, out; not <unk>
    assert "warning: [en] valid: 33.3 % of the tokens became <unk>. Learn subwords with --subword sentencepiece" in err
    assert "warning: [ro] valid: 2 tokens are spelled <s>, <pad> or </s>" in err
    assert "train:" not in err


def test_several_prefixes_are_numbered(text, destination):
    other = text("other", ["a letter"], ["o scrisoare"])
    valid = f"{text('dev')},{other},{text('dev')}"
    make(destination, text(), validpref=valid, testpref=other)
    made = {name.partition(".")[0] for name in content(destination) if name.endswith(".idx")}
    assert made == {"train", "valid", "valid1", "valid2", "test"}
    same = [content(destination)[f"{split}.en-ro.en.bin"] for split in ("train", "valid", "valid2")]
    assert same[0] == same[1] == same[2]
    assert len(BinaryReader(destination / "valid1.en-ro.ro")) == 1


def test_only_source_is_named_as_by_fairseq(tmp_path, text, destination):
    prefix = text()
    build_and_make = {"only-source": True, "trainpref": f"{prefix}.en", "destdir": str(destination)}
    make_data_folder(build(PreprocessConfig, build_and_make))
    assert sorted(content(destination)) == ["dict.txt", "manifest.json", "subwords.json", "train.bin", "train.idx"]
    assert list(load_subwords(destination)) == [""]
    make_data_folder(build(PreprocessConfig, {"only-source": True, "source-lang": "en", "trainpref": prefix,
                                              "destdir": str(tmp_path / "named")}))
    assert {"dict.en.txt", "train.en-None.en.bin"} <= set(content(tmp_path / "named"))


def test_joined_dictionary_counts_both_sides_once(text, destination):
    make(destination, text(en=["a b", "a"], ro=["a c", "c"]), joined_dictionary=True, padding_factor=1)
    assert (destination / "dict.en.txt").read_text() == (destination / "dict.ro.txt").read_text() == "a 3\nc 2\nb 1\n"


def test_given_dictionaries_are_used_as_they_are(tmp_path, text, destination):
    (tmp_path / "d.txt").write_text("boat 9\nbarca 2\n")
    prefix = text()
    make(destination, prefix, srcdict=str(tmp_path / "d.txt"))
    assert (destination / "dict.en.txt").read_text() == "boat 9\nbarca 2\n"
    assert len(Vocabulary.load(destination / "dict.ro.txt")) % 8 == 0
    make(tmp_path / "joined", prefix, tgtdict=str(tmp_path / "d.txt"), joined_dictionary=True)
    assert (tmp_path / "joined" / "dict.en.txt").read_text() == "boat 9\nbarca 2\n"
    make(tmp_path / "test-only", testpref=prefix, srcdict=str(tmp_path / "d.txt"), tgtdict=str(tmp_path / "d.txt"))
    assert "test.en-ro.en.idx" in content(tmp_path / "test-only")


def test_dict_only_writes_dictionaries(text, destination):
    make(destination, text(), dict_only=True)
    assert sorted(content(destination)) == ["dict.en.txt", "dict.ro.txt", "manifest.json", "subwords.json"]


def test_large_vocabularies_take_four_bytes_an_id(text, destination):
    many = [" ".join(f"w{number}" for number in range(start, start + 1000)) for start in range(0, 66_000, 1000)]
    make(destination, text(en=many, ro=many))
    assert BinaryReader(destination / "train.en-ro.en").dtype == np.int32


def test_a_stray_carriage_return_is_white_space_and_a_last_line_needs_no_end(text, destination):
    make(destination, text(en=b"a\rb\r\nc", ro=b"x\ny\n"))
    assert BinaryReader(destination / "train.en-ro.en").sizes.tolist() == [3, 2]


# Raw text


@pytest.mark.parametrize("options", [
    {"subword": "sentencepiece", "vocab_size": 60}, {"subword": "bpe", "vocab_size": 60},
    {"subword": "bpe", "vocab_size": 100, "joined_dictionary": True}, {"tokenizer": "moses"},
    {"subword": "sentencepiece", "vocab_size": 60, "tokenizer": "moses", "character_coverage": 1.0},
])
def test_raw_text_comes_back_from_the_ids(text, destination, options):
    raw = [line.replace(" .", ".") for line in ENGLISH]
    report = make(destination, text(en=raw), **options)
    subwords = load_subwords(destination)
    vocabulary = Vocabulary.load(destination / "dict.en.txt")
    decoded = [subwords["en"].decode(vocabulary.decode(ids)) for ids in BinaryReader(destination / "train.en-ro.en")]
    assert decoded == raw
    assert all(side.counts.num_unknown == 0 for side in report.sides)
    same = subwords["en"].to_bytes() == subwords["ro"].to_bytes()
    assert same == ("joined_dictionary" in options or "subword" not in options)
    assert read_manifest(destination)["subwords"]["en"].split(", ")[-1] == options.get("subword", "whitespace")


def test_models_of_an_earlier_run_can_be_given(tmp_path, text, destination):
    prefix = text()
    for kind, ending, option in (("bpe", "codes", "bpe_codes"), ("sentencepiece", "model", "sentencepiece_model")):
        make(tmp_path / kind, prefix, subword=kind, vocab_size=60)
        files = ",".join(str(tmp_path / kind / f"subword.{language}.{ending}") for language in ("en", "ro"))
        make(destination / kind, prefix, **{option: files})
        for name in ("dict.en.txt", "train.en-ro.ro.bin", f"subword.en.{ending}"):
            assert (destination / kind / name).read_bytes() == (tmp_path / kind / name).read_bytes()


def test_large_texts_are_sampled_for_learning(text, destination, monkeypatch):
    seen = []
    monkeypatch.setattr("lamina.preprocess.segmentation.MAX_LEARNING_LINES", 8)
    monkeypatch.setattr("lamina.preprocess.segmentation.learn_subword",
                        lambda kind, lines, size, **_: seen.append(list(lines)) or Whitespace())
    make(destination, text(), subword="bpe")
    assert seen == [ENGLISH[::3], ROMANIAN[::3]]


@pytest.mark.parametrize("kind", ["sentencepiece", "bpe"])
def test_bad_text_is_named_while_subwords_are_learned(text, destination, kind):
    with pytest.raises(DataError, match=r"train\.en, line 3: byte 10 of the file \(0xff\)"):
        make(destination, text(en=b"good\n\nbad \xff\xfe bytes\n" + b"x\n" * 17), subword=kind)
    assert_nothing_left(destination)


# Many processes


def corpus(num_lines, seed):
    random = np.random.default_rng(seed)
    words = [f"w{number}{'é' * (number % 3)}" for number in range(300)]
    return [" ".join(words[number] for number in random.zipf(1.3, random.integers(0, 12)) % 300)
            for _ in range(num_lines)]


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_many_workers_write_the_bytes_of_one(text, destination, tmp_path, monkeypatch, start_method):
    if start_method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {start_method} here")
    prefix = text(en=corpus(4000, 1), ro=corpus(4000, 2))
    make(destination, prefix, joined_dictionary=True)
    monkeypatch.setattr(pipeline, "MIN_BYTES_FOR_POOL", 0)
    monkeypatch.setattr(pipeline, "MIN_RANGE_BYTES", 1000)
    monkeypatch.setattr(workers, "START_METHOD", start_method)
    make(tmp_path / "many", prefix, joined_dictionary=True, workers=2)
    one, many = content(destination), content(tmp_path / "many")
    one.pop("manifest.json"), many.pop("manifest.json")
    assert one == many


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1 << 20])
def test_blocks_and_ranges_never_change_the_lines(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(line_blocks, "BLOCK_BYTES", block_bytes)
    data = "\n".join(["", "ab", "éé", "", "x" * 30, "東京 \u2028 z", ""]).encode()
    for ending in (b"", b"\n", b"\n\n"):
        path = tmp_path / "text"
        path.write_bytes(data + ending)
        expected = (data + ending).decode().split("\n")
        expected = expected[:-1] if expected[-1] == "" else expected
        assert line_blocks.count_lines(str(path)) == len(expected)
        for range_bytes in (1, 5, 20, 1000):
            ranges = line_blocks.split_ranges(str(path), path.stat().st_size, 100, range_bytes)
            blocks = [block for part in ranges for block in line_blocks.read_line_blocks(part, 100)]
            assert [line for block in blocks for line in block] == expected


def test_an_error_in_a_worker_reaches_the_user(text, destination, monkeypatch):
    monkeypatch.setattr(pipeline, "MIN_BYTES_FOR_POOL", 0)
    monkeypatch.setattr(pipeline, "MIN_RANGE_BYTES", 50)
    bad = "".join(f"{line}\n" for line in ROMANIAN[:-1]).encode() + b"caf\xe9\n"
    with pytest.raises(DataError, match=r"train\.ro, line 20: byte \d+ of the file \(0xe9\) is not valid UTF-8"):
        make(destination, text(ro=bad), workers=2)
    assert_nothing_left(destination)


def kill_worker(task):
    os._exit(9)


def test_a_killed_worker_is_named(text, destination, monkeypatch):
    monkeypatch.setattr(pipeline, "MIN_BYTES_FOR_POOL", 0)
    monkeypatch.setattr(pipeline, "count_range", kill_worker)
    with pytest.raises(DataError, match=r"a worker process was killed, .* fewer --workers"):
        make(destination, text(), workers=2)
    assert_nothing_left(destination)


# Bad input


@pytest.mark.parametrize(("sides", "message"), [
    ({"ro": ROMANIAN[:-3]}, r"sides of train do not match: .*train\.ro ends after line 17, .*train\.en has 20 lines"),
    ({"ro": b""}, r"train\.ro is empty"),
    ({"en": ["", ""], "ro": ["", ""]}, "training text of en has only empty lines"),
    ({"en": [*ENGLISH[:19], "x" * 200]}, r"train\.en, line 20 has more than 150 characters.*--max-line-length"),
    ({"en": b"good\n\nbad \xff\xfe bytes\n" + b"x\n" * 17}, r"train\.en, line 3: byte 10 of the file \(0xff\)"),
    ({"en": b"x\n" * 19 + "cut é".encode()[:-1]}, r"line 20: byte 42 of the file \(0xc3\)"),
])
def test_bad_text_is_one_clear_line_and_leaves_nothing(text, destination, sides, message):
    with pytest.raises(DataError, match=message) as error:
        make(destination, text(**sides), max_line_length=150)
    assert "\n" not in str(error.value)
    assert_nothing_left(destination)


def test_missing_files_show_what_is_nearby(tmp_path, text, destination, capsys):
    prefix = text()
    with pytest.raises(DataError, match=r"train\.de does not exist\. Nearby: train\.en, train\.ro\."):
        make(destination, prefix, source_lang="de")
    (tmp_path / "dir.en").mkdir()
    with pytest.raises(DataError, match="is a folder"):
        make(destination, str(tmp_path / "dir"))
    with pytest.raises(DataError, match="Check the prefix"):
        make(destination, str(tmp_path / "nothing" / "there"))
    assert main(["preprocess", "-s", "de", "-t", "ro", "--trainpref", prefix, "--destdir", str(destination)]) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert_nothing_left(destination)


def test_a_file_without_line_ends_does_not_fill_memory(tmp_path, destination, monkeypatch):
    monkeypatch.setattr(pipeline, "MIN_RANGE_BYTES", 1000)
    for language in ("en", "ro"):
        (tmp_path / f"train.{language}").write_bytes(b"short\n" + b"long " * 100_000)
    with pytest.raises(DataError, match=r"train\.en, line 2 has more than 1000 characters"):
        make(destination, str(tmp_path / "train"), max_line_length=1000)
    with pytest.raises(DataError, match=r"train\.en, line 2 has more than 1000 characters"):
        list(line_blocks.read_lines(str(tmp_path / "train.en"), 1000))


def test_unreadable_models_and_dictionaries_are_named(tmp_path, text, destination):
    (tmp_path / "bad").write_text("one two three\n")
    with pytest.raises(DataError, match="bad, line 1: expected `symbol count`"):
        make(destination, text(), srcdict=str(tmp_path / "bad"))
    with pytest.raises(DataError, match="bad, line 1: expected two symbols to merge"):
        make(destination, text(), bpe_codes=str(tmp_path / "bad"))
    with pytest.raises(DataError, match=r"absent cannot be read: .*Expected a sentencepiece"):
        make(destination, text(), sentencepiece_model=str(tmp_path / "absent"))
    assert_nothing_left(destination)


@pytest.mark.parametrize(("options", "message"), [
    ({"source_lang": "ro"}, "are both 'ro'"),
    ({"only_source": True, "joined_dictionary": True}, "--joined-dictionary has no effect together with --only-source"),
    ({"joined_dictionary": True, "srcdict": "a", "tgtdict": "b"}, "not both"),
    ({"joined_dictionary": True, "nwordstgt": 50}, "--nwordstgt has no effect with --joined-dictionary"),
    ({"joined_dictionary": True, "tgtdict": "a", "thresholdsrc": 5}, "no effect on a dictionary that --tgtdict gives"),
    ({"srcdict": "a", "thresholdsrc": 5}, "--thresholdsrc has no effect together with --srcdict"),
    ({"srcdict": "a", "tgtdict": "b", "padding_factor": 16}, "--padding-factor has no effect"),
    ({"nwordssrc": 2}, "special symbols alone are 4"),
    ({"padding_factor": 0}, "--padding-factor is 0"),
    ({"vocab_size": 500}, "--vocab-size has no effect without --subword"),
    ({"vocab_size": 500, "subword": "none"}, "--vocab-size has no effect without --subword"),
    ({"subword": "bpe", "vocab_size": 0}, "--vocab-size is 0"),
    ({"subword": "bpe", "bpe_codes": "a"}, "--bpe-codes brings a subword model and --subword learns one"),
    ({"bpe_codes": "a", "sentencepiece_model": "b"}, "give one"),
    ({"bpe_codes": "a,b,c"}, "one file, or one for the source and one for the target"),
    ({"subword": "bpe", "character_coverage": 0.9}, "--character-coverage has no effect"),
    ({"subword": "sentencepiece", "character_coverage": 1.5}, r"must lie in \(0, 1\]"),
    ({"subword": "bpe", "srcdict": "a"}, "which a dictionary given by --srcdict or --tgtdict would not know"),
    ({"dict_only": True, "validpref": "v"}, "--validpref has no effect together with --dict-only"),
    ({"workers": 0}, "--workers is 0"),
    ({"max_line_length": 0}, "--max-line-length is 0"),
    ({"source_lang": "a/b"}, "becomes part of file names"),
    ({"trainpref": None}, "no text given"),
    ({"trainpref": None, "testpref": "t"}, "pass --trainpref, or give --srcdict and --tgtdict"),
    ({"trainpref": None, "testpref": "t", "srcdict": "a", "tgtdict": "b", "subword": "bpe"}, "learns on training text"),
    ({"only_source": True, "source_lang": None}, "--only-source with --target-lang needs --source-lang"),
    ({"only_source": True, "bpe_codes": "a,b"}, "one side, and so one subword model"),
    ({"only_source": True, "source_lang": None, "target_lang": None, "tokenizer": "moses"}, "know the language"),
    ({"target_lang": None}, "--source-lang and --target-lang are needed"),
])
def test_contradictory_flags_are_refused(destination, options, message):
    with pytest.raises(ConfigError, match=message):
        configure(destination, "train", **options)


# Whole or not at all


@pytest.fixture(params=["count", "encode", "manifest"])
def failing_step(request, monkeypatch):
    """Makes one of the steps end in the given error."""
    def fail(error):
        def raise_it(*arguments):
            raise error
        owner, name = {"count": (pipeline, "merge_counts"), "encode": (BinaryWriter, "finish"),
                       "manifest": (pipeline, "write_manifest")}[request.param]
        monkeypatch.setattr(owner, name, raise_it)
    return fail


def test_full_disk_is_one_line_and_leaves_nothing(text, destination, failing_step):
    failing_step(OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(DataError, match=r"the disk that holds .*data-bin is full"):
        make(destination, text())
    assert_nothing_left(destination)


def test_interruption_leaves_an_earlier_folder_as_it_was(text, destination, failing_step):
    make(destination, text())
    before = content(destination)
    failing_step(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        make(destination, text(en=["new"], ro=["nou"]))
    assert content(destination) == before


def test_stop_between_two_moves_is_noticed_and_mended(text, destination, monkeypatch):
    prefix = text()
    make(destination, prefix)
    moves = []

    def replace(source, target, real=os.replace):
        moves.append(target)
        if Path(target).parent == destination and len(moves) > 8:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(data_folder.os, "replace", replace)
    with pytest.raises(KeyboardInterrupt):
        make(destination, text(en=["new"], ro=["nou"]))
    assert (destination / UNFINISHED_NAME).exists()
    with pytest.raises(DataError, match="mixes old and new files"):
        BinaryReader(destination / "train.en-ro.en")
    with pytest.raises(DataError, match="Run `lamina preprocess` again"):
        read_manifest(destination)
    monkeypatch.undo()
    dictionaries = {"srcdict": str(destination / "dict.en.txt"), "tgtdict": str(destination / "dict.ro.txt")}
    with pytest.raises(DataError, match="left over from a run that was stopped"):
        make(destination, testpref=prefix, **dictionaries)
    make(destination, prefix)
    assert len(BinaryReader(destination / "train.en-ro.en")) == 1
    assert sorted(content(destination)) == sorted(FILES)


def test_remains_of_a_killed_run_are_cleared_away(text, destination):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    host = data_folder.socket.gethostname()
    for name in (f".partial-{host}-{ended.pid}", f".partial-{host}-{os.getppid()}", ".partial-elsewhere-1"):
        (destination / name).mkdir(parents=True)
    make(destination, text())
    left = {path.name for path in destination.iterdir() if path.is_dir()}
    assert left == {f".partial-{host}-{os.getppid()}", ".partial-elsewhere-1"}


def test_unwritable_destination_is_named(tmp_path, text):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file.*Choose another --destdir"):
        make(tmp_path / "file" / "data", text())


# Into a folder that is already there


def test_further_splits_join_a_folder_with_the_same_dictionary(text, destination):
    prefix = text()
    make(destination, prefix)
    before = content(destination)
    dictionaries = {"srcdict": str(destination / "dict.en.txt"), "tgtdict": str(destination / "dict.ro.txt")}
    make(destination, testpref=prefix, **dictionaries)
    after = content(destination)
    assert {name for name in before if before[name] != after[name]} == {"manifest.json"}
    assert set(read_manifest(destination)["splits"]) == {
        f"{split}.en-ro.{language}" for split in ("train", "test") for language in ("en", "ro")}


def test_splits_of_another_dictionary_or_subword_model_are_not_orphaned(text, destination):
    make(destination, text(), testpref=text())
    before = content(destination)
    with pytest.raises(DataError, match=r"also holds test\.en-ro\.en, made with another dict\.en\.txt"):
        make(destination, text("more", en=["other words"], ro=["alte cuvinte"]))
    dictionaries = {"srcdict": str(destination / "dict.en.txt"), "tgtdict": str(destination / "dict.ro.txt")}
    with pytest.raises(DataError, match="another subword model"):
        make(destination, text(), tokenizer="moses", **dictionaries)
    assert content(destination) == before


def test_a_run_over_the_same_splits_replaces_them(text, destination):
    make(destination, text(), subword="bpe", vocab_size=60)
    make(destination, text(en=["new"], ro=["nou"]))
    assert len(BinaryReader(destination / "train.en-ro.en")) == 1
    assert load_subwords(destination)["en"].kind == "whitespace"
    assert sorted(content(destination)) == sorted(FILES)
    assert set(read_manifest(destination)["files"]) == set(FILES) - {"manifest.json"}


# What it shows


def test_progress_in_a_log_is_a_line_now_and_then(capsys, monkeypatch):
    monkeypatch.setattr(console, "SECONDS_BETWEEN_LINES", 0.0)
    with console.progress("read the text", 200) as advance:
        advance(50)
    with console.progress("learn", None) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "| read the text: 25 %, about 0 s left\n| learn ...\n")


def test_progress_in_a_terminal_is_a_bar(monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    with console.progress("read the text", 200) as advance:
        advance(200)
    assert "read the text" in terminal.getvalue()


def test_help_needs_neither_torch_nor_numpy():
    code = ("import sys; from lamina.cli import main; main(['preprocess', '--help']); "
            "sys.exit(any(name in sys.modules for name in ('torch', 'numpy')))")
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    for flag in ("joined-dictionary", "--subword", "--trainpref", "--padding-factor", "--workers"):
        assert flag in shown.stdout


def test_manifest_of_another_format_is_refused(text, destination):
    make(destination, text())
    for damaged, message in ((json.dumps({"format": 99}), "has format 99"), ("{", "cannot be read")):
        (destination / "manifest.json").write_text(damaged)
        with pytest.raises(DataError, match=message):
            read_manifest(destination)
