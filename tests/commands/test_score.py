"""`lamina score`: fairseq's command lines and output, several references, files that do not fit."""

import io
import json
import os
import sys
import threading

import pytest
import sacrebleu

from lamina.cli import main

SYSTEM = ["the cat sat on the mat .", "there is a dog in the garden .", "it rains again today"]
REFERENCE = ["the cat sat on a mat .", "There is a dog in the garden .", "it rains today"]
OTHER = ["a cat sat on the mat .", "a dog is in the garden .", "today it rains again"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, lines in (("sys", SYSTEM), ("ref", REFERENCE), ("other", OTHER)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def score(capsys, *words):
    assert main(["score", *words]) == 0
    return capsys.readouterr().out.splitlines()


def error(capsys, *words):
    assert main(["score", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


def test_the_line_and_the_signature(folder, capsys):
    line, signature = score(capsys, "--sys", "sys", "--ref", "ref")
    theirs = sacrebleu.corpus_bleu(SYSTEM, [REFERENCE], tokenize="none", force=True)
    precisions = "/".join(f"{value:.1f}" for value in theirs.precisions)
    assert line == (f"BLEU4 = {theirs.score:.2f}, {precisions} (BP={theirs.bp:.3f}, ratio={19 / 18:.3f}, syslen=19, reflen=18)")
    assert signature.startswith("nrefs:1|case:mixed|eff:no|tok:none|smooth:none|version:")


def test_a_text_against_itself(folder, capsys):
    assert score(capsys, "-s", "sys", "-r", "sys")[0] == (
        "BLEU4 = 100.00, 100.0/100.0/100.0/100.0 (BP=1.000, ratio=1.000, syslen=19, reflen=19)")


def test_order_and_case(folder, capsys):
    assert score(capsys, "-s", "sys", "-r", "ref", "-o", "2")[0].startswith("BLEU2 = ")
    (folder / "sys").write_text("\n".join(REFERENCE).upper())
    assert score(capsys, "-s", "sys", "-r", "ref", "--ignore-case")[0].startswith("BLEU4 = 100.00, ")


def test_detokenized_text(folder, capsys):
    (folder / "sys").write_text("Hello, world! How are you?\n")
    (folder / "ref").write_text("Hello , world ! How are you ?\n")
    line, signature = score(capsys, "-s", "sys", "-r", "ref", "--sacrebleu")
    assert line.startswith("BLEU4 = 100.00, ")
    assert "|tok:13a|" in signature
    assert not score(capsys, "-s", "sys", "-r", "ref")[0].startswith("BLEU4 = 100.00, ")


@pytest.mark.parametrize("words", [["--ref", "ref", "other"], ["--ref", "ref", "--ref", "other"]])
def test_several_references(folder, capsys, words):
    line, signature = score(capsys, "--sys", "sys", *words)
    expected = sacrebleu.corpus_bleu(SYSTEM, [REFERENCE, OTHER], tokenize="none", force=True).score
    assert line.startswith(f"BLEU4 = {expected:.2f}, ")
    assert signature.startswith("nrefs:2|")


def test_a_line_for_each_sentence(folder, capsys):
    assert main(["score", "--sys", "sys", "--ref", "ref", "--sentence-bleu"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert [line.split(" ")[:2] for line in lines] == [["0", "BLEU4"], ["1", "BLEU4"], ["2", "BLEU4"]]
    # By hand: 3 of 4 words, 1+1 of 3+1 pairs, 0+1 of 2+1 triples, 0+1 of 1+1 quadruples; their product is 1/16.
    assert lines[2] == "2 BLEU4 = 50.00, 75.0/50.0/33.3/50.0 (BP=1.000, ratio=1.333, syslen=4, reflen=3)"
    assert captured.err.startswith("| nrefs:1|")
    assert captured.err.count("\n") == 1


def test_other_metrics(folder, capsys):
    lines = score(capsys, "--sys", "sys", "--ref", "ref", "--metric", "bleu,chrf,ter")
    assert [line.split(" = ")[0] for line in lines[::2]] == ["BLEU4", "chrF2", "TER"]
    assert all(line.startswith("nrefs:1|") for line in lines[1::2])
    assert lines[2] == f"chrF2 = {sacrebleu.corpus_chrf(SYSTEM, [REFERENCE]).score:.2f}"
    assert lines[4] == f"TER = {sacrebleu.corpus_ter(SYSTEM, [REFERENCE]).score:.2f}"
    lines = score(capsys, "--sys", "sys", "--ref", "ref", "--metric", "chrf,ter", "--sentence-bleu")
    assert lines[1] == f"1 chrF2 = {sacrebleu.sentence_chrf(SYSTEM[1], [REFERENCE[1]]).score:.2f}\tTER = 0.00"


@pytest.mark.parametrize("words", [[], ["--sys", "-"]])
def test_standard_input(folder, capsys, monkeypatch, words):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((folder / "sys").read_bytes())))
    assert score(capsys, *words, "--ref", "ref") == score(capsys, "--sys", "sys", "--ref", "ref")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe(folder, capsys):
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: (folder / "pipe").write_bytes((folder / "sys").read_bytes()))
    writer.start()
    piped = score(capsys, "--sys", "pipe", "--ref", "ref")
    writer.join()
    assert piped == score(capsys, "--sys", "sys", "--ref", "ref")


def test_only_line_feeds_end_lines(folder, capsys):
    (folder / "sys").write_bytes("a b\u2028c\u0085d\r\ne f g h".encode())
    (folder / "ref").write_bytes(b"a b c d\ne f g h\n")
    assert score(capsys, "--sys", "sys", "--ref", "ref")[0].startswith("BLEU4 = 100.00, ")


def test_empty_lines_count(folder, capsys):
    (folder / "sys").write_text("\n\n\n")
    assert score(capsys, "--sys", "sys", "--ref", "ref")[0] == (
        "BLEU4 = 0.00, 0.0/0.0/0.0/0.0 (BP=0.000, ratio=0.000, syslen=0, reflen=18)")


# -- what cannot be scored

def test_files_that_do_not_fit(folder, capsys):
    (folder / "sys").write_text("\n".join(SYSTEM[:2]))
    message = error(capsys, "--sys", "sys", "--ref", "ref")
    assert "sys has 2 lines and ref has 3 lines" in message
    assert "sys ends with 'there is a dog in the garden .', where ref has 'There is a dog" in message
    assert "continues with 'it rains today'" in message
    (folder / "other").write_text("one\n")
    assert "sys has 2 lines and other has 1 line;" in error(capsys, "--sys", "sys", "--ref", "other")


def test_every_reference_has_to_fit(folder, capsys):
    (folder / "other").write_text("one\n")
    assert "other has 1 line;" in error(capsys, "--sys", "sys", "--ref", "ref", "other")


def test_empty_missing_and_damaged_files(folder, capsys, monkeypatch):
    (folder / "empty").touch()
    (folder / "latin").write_bytes(b"fine\nalso fine\ncaf\xe9\n")
    assert "empty is empty; expected one sentence per line" in error(capsys, "--sys", "empty", "--ref", "ref")
    assert "empty is empty" in error(capsys, "--sys", "sys", "--ref", "empty")
    assert "there is no file nowhere" in error(capsys, "--sys", "sys", "--ref", "nowhere")
    assert "cannot be read: " in error(capsys, "--sys", str(folder), "--ref", "ref")
    message = error(capsys, "--sys", "latin", "--ref", "ref")
    assert "latin, line 3: byte 18 of the text (0xe9) is not valid UTF-8" in message
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert "standard input is empty" in error(capsys, "--ref", "ref")


@pytest.mark.parametrize(("words", "message"), [
    (["--sys", "sys"], "--ref is needed"),
    (["--ref", "-"], "can be read once only"),
    (["--ref", "ref", "--metric", "bleu,meteor"], "--metric is 'meteor'; it must be one of bleu, chrf, ter"),
    (["--ref", "ref", "--metric", "ter,ter"], "twice"),
    (["--ref", "ref", "--metric", ","], "--metric is empty"),
    (["--ref", "ref", "--order", "0"], "at least 1"),
    (["--ref", "ref", "--metric", "chrf", "--order", "3"], "--order has no effect without BLEU"),
    (["--ref", "ref", "--metric", "chrf", "--sacrebleu"], "--sacrebleu has no effect without BLEU"),
    (["--ref"], "expected at least one argument"),
])
def test_bad_flags(folder, capsys, words, message):
    assert message in error(capsys, *words)


# -- summaries and corrections

def test_summaries(folder, capsys):
    pytest.importorskip("rouge_score")
    line, signature = score(capsys, "--sys", "sys", "--ref", "sys", "other", "--metric", "rouge", "--rouge-stemmer")
    assert line == "ROUGE-1 = 100.00, ROUGE-2 = 100.00, ROUGE-L = 100.00, ROUGE-Lsum = 100.00"
    assert signature.startswith("nrefs:2|best:max|stemmer:yes|")
    lines = score(capsys, "--sys", "sys", "--ref", "sys", "--metric", "rouge", "--sentence-bleu", "--rouge-separator", ".")
    assert [line.split(" ")[:2] for line in lines] == [["0", "ROUGE-1"], ["1", "ROUGE-1"], ["2", "ROUGE-1"]]


def test_corrections(folder, capsys):
    (folder / "edits.m2").write_text("S the cat sat\n\nS the dog\nA 1 2|||x|||dogs|||REQUIRED|||-NONE-|||0\n")
    (folder / "fixed").write_text("the cat sat\nthe dogs\n")
    line, signature = score(capsys, "--sys", "fixed", "--metric", "m2", "--m2", "edits.m2")
    assert line == "M2 F0.5 = 100.00 (P=100.00, R=100.00, correct=1, proposed=1, gold=1)"
    assert signature == "annotators:1|beta:0.5|unchanged:2|tok:none"
    assert score(capsys, "--sys", "sys", "--ref", "sys", "--metric", "gleu", "--source", "other")[0] == "GLEU = 100.00"
    both = score(capsys, "--sys", "fixed", "--ref", "fixed", "--metric", "bleu,m2", "--m2", "edits.m2")
    assert [text.split(" ")[0] for text in both[::2]] == ["BLEU4", "M2"]


@pytest.mark.parametrize(("words", "message"), [
    ("--metric chrf", "--ref is needed: chrf compares with references"),
    ("--metric m2", "give --m2 FILE"),
    ("--metric m2 --m2 edits.m2 --ref ref", "--ref has no effect on M2"),
    ("--metric errant", "--metric errant compares with annotated edits"),
    ("--metric errant --m2 edits.m2 --ref ref", "--ref has no effect on ERRANT"),
    ("--metric gleu --ref ref", "give its file with --source"),
    ("--metric m2 --m2 edits.m2 --sentence-bleu", "judge a file as a whole"),
    ("--ref ref --m2 edits.m2", "--m2 has no effect without M2"),
    ("--ref ref --rouge-stemmer", "--rouge-stemmer has no effect without ROUGE"),
    ("--metric m2 --m2 edits.m2", "sys has 3 lines and edits.m2 has 1 line;"),
    ("--metric m2 --m2 ref", "is not of an M2 file"),
    ("--metric gleu --ref ref --source edits.m2", "sys has 3 lines and edits.m2 has"),
])
def test_what_corrections_need(folder, capsys, words, message):
    (folder / "edits.m2").write_text("S the cat sat\n")
    assert message in error(capsys, "--sys", "sys", *words.split())


def test_against_a_baseline(folder, capsys):
    lines = score(capsys, "--sys", "sys", "--ref", "ref", "--metric", "bleu,chrf", "--baseline", "other",
                  "--bootstrap-samples", "50")
    assert lines[0].startswith("BLEU4 = ")
    assert [line.split(" against ")[0].rsplit(" ", 1)[0] for line in lines[4:6]] == ["compared: bleu", "compared: chrf"]
    assert lines[6] == "paired-bootstrap|samples:50|baseline:other"
    (folder / "short").write_text("one\n")
    assert "line N of one must belong" in error(capsys, "--sys", "sys", "--ref", "ref", "--baseline", "short")
    assert "--baseline compares by bleu, chrf, ter" in error(capsys, "--sys", "sys", "--ref", "ref", "--metric", "rouge",
                                                             "--baseline", "other")
    assert "without --baseline" in error(capsys, "--sys", "sys", "--ref", "ref", "--bootstrap-samples", "7")


def test_figures_as_json(folder, capsys):
    words = ["--sys", "sys", "--ref", "ref", "--metric", "bleu,ter"]
    printed = score(capsys, *words)
    assert score(capsys, *words, "--json", "figures.json") == printed
    found = json.loads((folder / "figures.json").read_text())
    assert found == {"figures": {"bleu": sacrebleu.corpus_bleu(SYSTEM, [REFERENCE], tokenize="none", force=True).score,
                                 "ter": sacrebleu.corpus_ter(SYSTEM, [REFERENCE]).score},
                     "signatures": {"bleu": printed[1], "ter": printed[3]}, "compared": {}}
    score(capsys, *words, "--json", "figures.json", "--baseline", "other", "--bootstrap-samples", "20")
    compared = json.loads((folder / "figures.json").read_text())["compared"]
    assert list(compared) == ["bleu", "ter"]
    assert compared["bleu"]["difference"] == compared["bleu"]["score"] - compared["bleu"]["baseline"]
    assert 0 < compared["bleu"]["p"] <= 1
    assert "--json has no effect together with --sentence-bleu" in error(capsys, *words, "--json", "x", "--sentence-bleu")
