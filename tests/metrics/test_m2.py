"""MaxMatch: every figure here is counted by hand, or by trying all ways to cut a sentence into edits."""

import os
import random
from pathlib import Path

import pytest

from lamina.errors import DataError
from lamina.metrics.m2 import Annotated, Counts, Edit, MaxMatch, count_matches, edit_lattice, read_m2

DATA = Path(os.environ.get("LAMINA_GEC_DATA", "gec_eval"))


def edit(start, end, *corrections):
    return Edit(start, end, frozenset(tuple(text.split()) for text in corrections))


def counts(source, hypothesis, *annotators, **options):
    """`annotators` are lists of edits."""
    sentence = Annotated(tuple(source.split()), tuple(map(tuple, annotators)))
    return MaxMatch([sentence], **options).corpus([hypothesis]).counts


def m2(text):
    return read_m2([line.strip() for line in text.strip().split("\n")], "file")


def corrected(sentence, edits):
    words = list(sentence.source)
    for one in sorted(edits, reverse=True):
        words[one.start : one.end] = min(one.corrections)
    return " ".join(words)


# Three sentences; the second and the third have two annotators.
FILE = m2("""
    S She sit in chair .
    A 1 2|||SVA|||sits|||REQUIRED|||-NONE-|||0
    A 2 3|||Prep|||on|||REQUIRED|||-NONE-|||0
    A 3 3|||ArtOrDet|||the||a|||REQUIRED|||-NONE-|||0

    S My bike .
    A 1 2|||Nn|||bikes|||REQUIRED|||-NONE-|||0
    A -1 -1|||noop|||-NONE-|||REQUIRED|||-NONE-|||1

    S Both woman is an doctor .
    A 1 2|||Nn|||women|||REQUIRED|||-NONE-|||0
    A 2 3|||SVA|||are|||REQUIRED|||-NONE-|||0
    A 3 4|||ArtOrDet|||-NONE-|||REQUIRED|||-NONE-|||0
    A 4 5|||Nn|||doctors|||REQUIRED|||-NONE-|||0
    A 0 1|||Wci|||The|||REQUIRED|||-NONE-|||1
    A 3 4|||ArtOrDet|||a|||REQUIRED|||-NONE-|||1
""")


# -- the file

def test_the_file():
    assert FILE[0].source == ("She", "sit", "in", "chair", ".")
    assert FILE[0].annotators == ((edit(1, 2, "sits"), edit(2, 3, "on"), edit(3, 3, "the", "a")),)
    assert FILE[1].annotators == ((edit(1, 2, "bikes"),), ())
    assert FILE[2].annotators[0][2] == edit(3, 4, "")


@pytest.mark.parametrize(("line", "message"), [
    ("A 1 2|||x|||y|||REQUIRED|||-NONE-", "line 2: '1 2|||x"),
    ("A one 2|||x|||y|||REQUIRED|||-NONE-|||0", "whole numbers"),
    ("A 1 9|||x|||y|||REQUIRED|||-NONE-|||0", "from word 1 to 9, but the sentence has 2 words"),
    ("A 2 1|||x|||y|||REQUIRED|||-NONE-|||0", "from word 2 to 1"),
    ("T a b", "line 2: 'T a b' is not of an M2 file"),
])
def test_what_is_no_such_file(line, message):
    with pytest.raises(DataError) as caught:
        m2(f"S a b\n{line}")
    assert message in str(caught.value)
    with pytest.raises(DataError, match="holds no sentence"):
        m2("\n")


# -- by hand

def test_a_reference_against_itself():
    hypotheses = [corrected(sentence, sentence.annotators[0]) for sentence in FILE]
    assert hypotheses == ["She sits on a chair .", "My bikes .", "Both women are doctors ."]
    score = MaxMatch(FILE).corpus(hypotheses)
    assert score.counts == Counts(8, 8, 8)
    assert score.text == "M2 F0.5 = 100.00 (P=100.00, R=100.00, correct=8, proposed=8, gold=8)"
    assert score.signature == "annotators:2|beta:0.5|unchanged:2|tok:none"


def test_the_source_against_itself():
    """Nothing proposed is nothing wrong, P = 1, and nothing found: R = 0, F = 0. Fewer edits missed is the better annotator."""
    score = MaxMatch(FILE).corpus([" ".join(sentence.source) for sentence in FILE])
    assert score.counts == Counts(0, 0, 3 + 0 + 2)
    assert (score.counts.precision, score.counts.recall, score.score) == (1.0, 0.0, 0.0)


def test_a_right_sentence_left_alone():
    assert counts("a b", "a b") == counts("a b", "a b", []) == Counts(0, 0, 0)
    assert Counts(0, 0, 0).f(0.5) == Counts(0, 0, 0).precision == Counts(0, 0, 0).recall == 1.0
    assert counts("a b", "a c", []) == Counts(0, 1, 0)


def test_some_right_some_wrong():
    # The first: sits and the, but in is left and She became He. The third: are and doctors of the first annotator.
    score = MaxMatch(FILE).corpus(["He sits in the chair .", "My bike .", "Both woman are an doctors ."])
    assert score.counts == Counts(2 + 0 + 2, 3 + 0 + 2, 3 + 0 + 4)
    precision, recall = 4 / 5, 4 / 7
    assert score.score == pytest.approx(100 * 1.25 * precision * recall / (0.25 * precision + recall))


def test_swapped_annotators():
    swapped = [Annotated(sentence.source, sentence.annotators[::-1]) for sentence in FILE]
    for third in ("Both women are doctors .", "The woman is a doctor .", "Both woman is a doctors .", "The women ."):
        hypotheses = ["She sits in the chair .", "My bikes .", third]
        assert MaxMatch(swapped).corpus(hypotheses) == MaxMatch(FILE).corpus(hypotheses)


def test_the_annotator_that_is_best_for_all_sentences_so_far():
    few, many = [edit(0, 1, "x")], [edit(0, 1, "x"), edit(2, 3, "z"), edit(4, 5, "v")]
    assert counts("a b c d e", "x b c d e", few, many) == Counts(1, 1, 1)
    assert counts("a b c d e", "x b z d e", few, many) == Counts(2, 2, 3)  # F 2.5/2.75 to 1.25/2.25
    # Alone, 2 of 22 found (F 2.5/7.5) loses to 1 of 1 (1.25/2.25). After eight wrong edits, 2.5/15.5 beats 1.25/10.25.
    first = Annotated(tuple("1 2 3 4 5 6 7 8 9 1 2 3 4 5 6".split()), ((),))
    wrong = "! 2 ! 4 ! 6 ! 8 ! 1 ! 3 ! 5 !"
    everything = (edit(0, 1, "x"), edit(2, 3, "z"), *(edit(5, 5, f"w{number}") for number in range(20)))
    second, hypothesis = Annotated(tuple("abcde"), (everything, (edit(0, 1, "x"),))), "x b z d e"
    assert MaxMatch([first], max_unchanged=0).corpus([wrong]).counts == Counts(0, 8, 0)
    assert MaxMatch([second], max_unchanged=0).corpus([hypothesis]).counts == Counts(1, 2, 1)
    assert MaxMatch([first, second], max_unchanged=0).corpus([wrong, hypothesis]).counts == Counts(2, 10, 22)


def test_edits_are_merged_as_the_annotator_has_them():
    # One replacement of two words, or two of one each: whatever the annotator says it is.
    assert counts("a b c", "x y c", [edit(0, 2, "x y")]) == Counts(1, 1, 1)
    assert counts("a b c", "x y c", [edit(0, 1, "x"), edit(1, 2, "y")]) == Counts(2, 2, 2)
    # Without an annotator's word for it, fewer edits are better: one wrong proposal.
    assert counts("a b c", "x y c", [edit(2, 3, "z")]) == Counts(0, 1, 1)
    # A merged edit may begin and end with words that stay.
    assert counts("a b c d", "a x c d", [edit(0, 3, "a x c")]) == Counts(1, 1, 1)


def test_the_limit_of_unchanged_words():
    gold = [edit(0, 4, "x b c y")]  # two words stay
    assert counts("a b c d e", "x b c y e", gold) == Counts(1, 1, 1)
    assert counts("a b c d e", "x b c y e", gold, max_unchanged=1) == Counts(0, 2, 1)
    gold = [edit(0, 5, "x b c d y")]  # three
    assert counts("a b c d e", "x b c d y", gold) == Counts(0, 2, 1)
    assert counts("a b c d e", "x b c d y", gold, max_unchanged=3) == Counts(1, 1, 1)
    # Unmatched changes become one edit over at most as many words.
    assert counts("a b c d e", "x b c y e", []) == Counts(0, 1, 0)
    assert counts("a b c d e", "x b c d y", []) == Counts(0, 2, 0)


def test_insertions_and_deletions():
    assert counts("a b", "a the b", [edit(1, 1, "the", "a")]) == Counts(1, 1, 1)
    assert counts("a b", "a an b", [edit(1, 1, "the", "a")]) == Counts(0, 1, 1)
    assert counts("a b c", "a c", [edit(1, 2, "")]) == Counts(1, 1, 1)
    # A word moved: deleted here, inserted there, or a replacement of the whole.
    assert counts("b a", "a b", [edit(0, 1, ""), edit(2, 2, "b")]) == Counts(2, 2, 2)
    assert counts("b a", "a b", [edit(0, 2, "a b")]) == Counts(1, 1, 1)
    # Deleting all, and inserting all.
    assert counts("a b", "", [edit(0, 2, "")]) == Counts(1, 1, 1)
    assert counts("", "a b", [edit(0, 0, "a b")]) == Counts(1, 1, 1)


def test_an_insertion_is_matched_once():
    gold = [edit(1, 1, "very")]
    assert counts("a b", "a very b", gold) == Counts(1, 1, 1)
    assert counts("a b", "a very very b", gold) == Counts(1, 2, 1)
    assert counts("a b", "a very very b", [*gold, *gold]) == Counts(2, 2, 2)


# -- by trying everything

def every_way(lattice, start, end):
    """All paths as lists of (from, to, keeps)."""
    if start == end:
        yield []
    for target, keeps in lattice.get(start, ()):
        for rest in every_way(lattice, target, end):
            yield [(start, target, keeps), *rest]


def every_cut(path, limit):
    """All ways to cut a path into kept words and edits, these as (start, end, arcs)."""
    if not path:
        yield []
    if path and path[0][2]:
        for rest in every_cut(path[1:], limit):
            yield [None, *rest]
    for size in range(1, len(path) + 1):
        kept = sum(keeps for *_, keeps in path[:size])
        if kept < size and kept <= limit:
            for rest in every_cut(path[size:], limit):
                yield [(path[0][0], path[size - 1][1], size), *rest]


def best_of_all(source, words, gold, limit):
    best = None
    end = len(source), len(words)
    lattice = edit_lattice(source, words)
    for path in every_way(lattice, (0, 0), end):
        for cut in every_cut(path, limit):
            left, arcs, edits, hits = list(gold), 0, 0, 0
            for part in cut:
                if part is None:
                    arcs += 1
                    continue
                (i, j), (k, m), size = part
                match = next((one for one in left if (one.start, one.end) == (i, k) and words[j:m] in one.corrections), None)
                if match is None:
                    arcs, edits = arcs + size, edits + 1
                else:
                    left.remove(match)
                    hits += 1
            way = (-hits, arcs, edits)
            best = way if best is None else min(best, way)
    return Counts(-best[0], best[2] - best[0], len(gold))


def test_no_way_is_better():
    draw = random.Random(0)
    for _ in range(150):
        source, words = (tuple(draw.choices("abc", k=draw.randint(0, 4))) for _ in range(2))
        gold = []
        for _ in range(draw.randint(0, 3)):
            start = draw.randint(0, len(source))
            begin = draw.randint(0, len(words))
            gold.append(Edit(start, draw.randint(start, len(source)), frozenset({words[begin : begin + draw.randint(0, 2)]})))
        limit = draw.randint(0, 2)
        found = count_matches(edit_lattice(source, words), words, (len(source), len(words)), gold, limit)
        assert found == best_of_all(source, words, gold, limit), (source, words, gold, limit)


# -- the CoNLL-2014 test set, where it is at hand

@pytest.mark.skipif(not (DATA / "conll14").is_dir(), reason="LAMINA_GEC_DATA names no folder with the CoNLL-2014 files")
def test_conll_2014():
    """An annotator's own corrections: nearly all are found again, but where they overlap or lie off every shortest path."""
    sentences = read_m2((DATA / "conll14" / "official-2014.combined.m2").read_text(encoding="utf-8").split("\n"), "official")
    assert len(sentences) == 1312
    hypotheses = [corrected(sentence, sentence.annotators[0] if sentence.annotators else ()) for sentence in sentences]
    assert MaxMatch(sentences).corpus(hypotheses).counts == Counts(2381, 2405, 2400)
    assert MaxMatch(sentences).corpus([" ".join(sentence.source) for sentence in sentences]).counts == Counts(0, 0, 1994)
