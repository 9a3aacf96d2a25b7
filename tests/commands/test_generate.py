"""`lamina generate`, `interactive` and `rescore`, in-process, with a model trained on 60 lines."""

import io
import json
import math
import re
import sys

import pytest
import torch

from lamina.cli import main
from lamina.nn.linear import has_onednn
from tiny import TINY_FLAGS, make_data, write_text


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A data folder and a checkpoint that knows a little."""
    folder = tmp_path_factory.mktemp("generate")
    data = make_data(folder, num_lines=60)
    assert main(["train", str(data), *TINY_FLAGS, "--max-tokens", "200", "--max-epoch", "40", "--lr", "0.01", "--log-format",
                 "none", "--no-epoch-checkpoints", "--save-dir", str(folder / "out")]) == 0
    return str(data), str(folder / "out" / "checkpoint_best.pt")


def generate(capsys, trained, *flags):
    data, path = trained
    code = main(["generate", data, "--path", path, "--gen-subset", "valid", "--cpu", *flags])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out.splitlines()


def rows(lines, kind):
    found = [line.split("\t") for line in lines if line.startswith(f"{kind}-")]
    return {int(cells[0].split("-")[1]): cells[1:] for cells in found}


def test_lines_and_figures(trained, capsys):
    lines = generate(capsys, trained, "--beam", "4", "--lenpen", "1.0", "--remove-bpe")
    assert [line.split("-")[0] for line in lines[:5]] == ["S", "T", "H", "D", "P"]
    for kind in "STHDP":
        assert list(rows(lines, kind)) == list(range(6))
    score, text = rows(lines, "H")[0]
    token_scores = [float(value) for value in rows(lines, "P")[0][0].split()]
    assert float(score) == pytest.approx(sum(token_scores) / len(token_scores), abs=1e-3)
    assert len(token_scores) == len(text.split()) + 1
    assert re.fullmatch(r"Generate valid with beam=4: BLEU4 = [\d.]+, [\d.]+/[\d.]+/[\d.]+/[\d.]+ "
                        r"\(BP=[\d.]+, ratio=[\d.]+, syslen=\d+, reflen=\d+\)", lines[-2])
    assert "tok:none" in lines[-1]


def test_results_do_not_depend_on_batches(trained, capsys):
    one = generate(capsys, trained, "--batch-size", "1")
    for flags in (["--max-tokens", "1000"], ["--batch-size", "4"], []):
        same(one, generate(capsys, trained, *flags))


def same(lines, others):
    """Text to the letter; sums of floats differ in their last digits with the shape of a batch."""
    assert len(lines) == len(others)
    for line, other in zip(lines, others, strict=True):
        for cell, own in zip(line.split("\t"), other.split("\t"), strict=True):
            if re.fullmatch(r"(-?\d+\.\d+ ?)+", cell):
                assert [*map(float, cell.split())] == pytest.approx([*map(float, own.split())], abs=1e-4)
            else:
                assert cell == own


def test_an_ensemble_of_a_model_with_itself_is_the_model(trained, capsys):
    data, path = trained
    one = rows(generate(capsys, trained), "D")
    assert main(["generate", data, "--path", f"{path}:{path}", "--gen-subset", "valid", "--cpu"]) == 0
    both = rows(capsys.readouterr().out.splitlines(), "D")
    assert {number: cells[1] for number, cells in one.items()} == {number: cells[1] for number, cells in both.items()}
    assert [float(cells[0]) for cells in one.values()] == pytest.approx([float(cells[0]) for cells in both.values()], abs=1e-4)


def test_quiet_and_other_metrics(trained, capsys):
    lines = generate(capsys, trained, "--quiet", "--metric", "bleu,chrf,ter", "--sacrebleu")
    assert len(lines) == 6
    assert [line.split(": ")[1].split(" =")[0] for line in lines[::2]] == ["BLEU4", "chrF2", "TER"]
    assert "tok:13a" in lines[1]


def test_figures_as_json(trained, tmp_path, capsys):
    path = tmp_path / "figures.json"
    lines = generate(capsys, trained, "--quiet", "--metric", "chrf,ter", "--json", str(path))
    found = json.loads(path.read_text())
    assert [f"{value:.2f}" for value in found["figures"].values()] == [line.rsplit(" = ", 1)[1] for line in lines[::2]]
    assert list(found["figures"]) == ["chrf", "ter"]
    assert found["signatures"]["ter"] == lines[3].removeprefix("| ")
    assert found["sentences"] > 0
    assert found["tokens"] > found["sentences"]
    data, checkpoint = trained
    assert main(["generate", data, "--path", checkpoint, "--gen-subset", "valid", "--cpu", "--score-reference", "--json",
                 str(path)]) == 2
    assert "--json has no effect together with --score-reference" in capsys.readouterr().err


def test_nbest_is_sorted(trained, capsys):
    lines = generate(capsys, trained, "--beam", "3", "--nbest", "3")
    scores = [float(line.split("\t")[1]) for line in lines if line.startswith("H-0\t")]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_alignment(trained, capsys):
    lines = generate(capsys, trained, "--print-alignment")
    sources = rows(lines, "S")
    for number, (pairs,) in rows(lines, "A").items():
        target_length = len(rows(lines, "H")[number][1].split())
        found = [tuple(map(int, pair.split("-"))) for pair in pairs.split()]
        assert [target for _, target in found] == list(range(target_length))
        assert all(source < len(sources[number][0].split()) for source, _ in found)


def test_a_prefix_is_kept(trained, capsys):
    lines = generate(capsys, trained, "--prefix-size", "2")
    references = rows(lines, "T")
    for number, (_, text) in rows(lines, "H").items():
        assert text.split()[:2] == references[number][0].split()[:2]


def test_scoring_references(trained, capsys):
    lines = generate(capsys, trained, "--score-reference")
    references = rows(lines, "T")
    assert {number: cells[1] for number, cells in rows(lines, "H").items()} == {
        number: cells[0] for number, cells in references.items()}
    assert not any(line.startswith("Generate") for line in lines)


def test_sampling_is_reproducible(trained, capsys):
    flags = ["--sampling", "--beam", "2", "--seed"]
    first = generate(capsys, trained, *flags, "3")
    same(first, generate(capsys, trained, *flags, "3", "--batch-size", "1"))
    assert first != generate(capsys, trained, *flags, "4")


def test_shards_make_up_the_whole(trained, capsys):
    whole = rows(generate(capsys, trained), "H")
    parts = {}
    for shard in ("0", "1"):
        parts |= rows(generate(capsys, trained, "--num-shards", "2", "--shard-id", shard), "H")
    assert {number: cells[1] for number, cells in parts.items()} == {number: cells[1] for number, cells in whole.items()}


def test_results_go_to_a_file(trained, capsys, tmp_path):
    whole = generate(capsys, trained)
    assert generate(capsys, trained, "--results-path", str(tmp_path / "results")) == []
    assert (tmp_path / "results" / "generate-valid.txt").read_text().splitlines() == whole


def test_the_references_lines(trained, capsys):
    data, path = trained
    for line in (f"generate {data} --path {path} --beam 4 --lenpen 1.0 --remove-bpe --gen-subset valid",
                 f"generate {data} --path {path} --batch-size 128 --beam 5 --remove-bpe --user-dir ../radam_fairseq --quiet "
                 "--fp16 --cpu --gen-subset valid"):
        assert main(line.split()) == 0
    assert "Generate valid with beam=5: BLEU4 = " in capsys.readouterr().out


def test_overrides_are_literals(trained, capsys):
    data, path = trained
    assert generate(capsys, trained, "--model-overrides", "{'dropout': 0.5}") == generate(capsys, trained)
    for text, message in (("__import__('os')", "must be a dictionary"), ("{'dropot': 0.5}", "Did you mean")):
        assert main(["generate", data, "--path", path, "--model-overrides", text]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "message"), [
    (["--gen-subset", "nosplit"], "no split 'nosplit'"), (["--path", "nowhere.pt"], "there is no checkpoint nowhere.pt"),
    (["--nbest", "9"], "--nbest is 9"), (["--shard-id", "1"], "--shard-id is 1"),
    (["--metric", "m2"], "--metric is 'm2'; it must be one of bleu, chrf, ter"), (["--metric", ","], "--metric is empty"),
    (["--order", "3", "--metric", "ter"], "--order has no effect without BLEU. Add bleu to --metric"),
    (["--sampling-topk", "3"], "without --sampling"), (["--quantize", "int8", "--bf16"], "--bf16 has no place beside it"),
    (["--quantize", "int4"], "--quantize is 'int4'"),
])
def test_bad_input(trained, capsys, flags, message):
    data, path = trained
    assert main(["generate", data, "--path", path, *flags]) == 2
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1
    assert message in error[0]


def test_another_folder(trained, capsys, tmp_path):
    other = make_data(tmp_path, num_lines=2)
    capsys.readouterr()
    assert main(["generate", str(other), "--path", trained[1], "--gen-subset", "valid"]) == 2
    assert "was made with the source dictionary" in capsys.readouterr().err


# -- interactive

def interactive(monkeypatch, capsys, trained, text, *flags):
    stdin = io.TextIOWrapper(io.BytesIO(text if isinstance(text, bytes) else text.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    code = main(["interactive", "--path", trained[1], "--cpu", *flags])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured


def test_lines_from_a_pipe(trained, capsys, monkeypatch):
    sources = [cells[0] for cells in rows(generate(capsys, trained), "S").values()]
    expected = [cells[1] for cells in rows(generate(capsys, trained), "D").values()]
    out = interactive(monkeypatch, capsys, trained, "\n".join(sources) + "\n", "--plain").out
    assert out.splitlines() == expected
    small = interactive(monkeypatch, capsys, trained, "\n".join(sources), "--plain", "--buffer-size", "2").out
    assert small == out
    lines = interactive(monkeypatch, capsys, trained, sources[0]).out.splitlines()
    assert [line.split("-")[0] for line in lines] == ["S", "H", "D", "P"]


def test_interactive_and_generate_count_the_same_tokens(trained, capsys, monkeypatch, tmp_path):
    data, path = trained
    assert main(["generate", data, "--path", path, "--gen-subset", "valid", "--cpu"]) == 0
    captured = capsys.readouterr()
    count = re.search(r"translated 6 sentences \((\d+) tokens\)", captured.err)[1]
    lines = captured.out.splitlines()
    assert int(count) == sum(len(cells[0].split()) for cells in rows(lines, "P").values())  # </s> has a score too
    sources = [cells[0] for cells in rows(lines, "S").values()]
    found = interactive(monkeypatch, capsys, trained, "\n".join(sources) + "\n", "--json", str(tmp_path / "speed.json"))
    written = json.loads((tmp_path / "speed.json").read_text())
    assert written["sentences"] == len(sources)
    assert f"({written['sentences'] / written['seconds']:.2f} sentences/s" in found.err
    assert f"translated {len(sources)} lines ({written['tokens']} tokens)" in found.err
    assert f"translated 6 lines ({count} tokens)" in found.err


@pytest.mark.parametrize("words", [["--remove-bpe"], ["--post-process", "subword_nmt"], ["--remove-bpe", "subword_nmt"]])
def test_marks_of_pieces_by_the_names_of_fairseq(in_pieces, capsys, words):
    """subword_nmt is a rule's name, not a mark that pieces end in."""
    joined = generate(capsys, in_pieces, "--remove-bpe", "@@ ")
    assert "@@" in "".join(generate(capsys, in_pieces))
    assert "@@" not in "".join(joined)
    assert generate(capsys, in_pieces, *words) == joined


@pytest.fixture(scope="module")
def in_pieces(tmp_path_factory):
    """Text that was cut into pieces before it came: the checkpoint knows nothing of it."""
    folder = tmp_path_factory.mktemp("pieces")
    for split, seed in (("train", 0), ("valid", 1)):
        write_text(folder / "text", 20, seed=seed, split=split)
        for file in (folder / "text").glob(f"{split}.*"):
            file.write_text(re.sub(r"(\w\w)(?=\w)", r"\1@@ ", file.read_text()))
    assert main(["preprocess", "-s", "en", "-t", "xx", "--trainpref", f"{folder}/text/train", "--validpref",
                 f"{folder}/text/valid", "--destdir", str(folder / "data"), "--workers", "1", "--joined-dictionary"]) == 0
    assert main(["train", str(folder / "data"), *TINY_FLAGS, "--save-dir", str(folder / "out"), "--max-epoch", "1",
                 "--eval-bleu", "--eval-bleu-remove-bpe", "subword_nmt", "--eval-bleu-print-samples"]) == 0
    return str(folder / "data"), str(folder / "out" / "checkpoint_best.pt")


def test_validation_knows_the_names_too(in_pieces, tmp_path, capsys):
    assert main(["train", in_pieces[0], *TINY_FLAGS, "--save-dir", str(tmp_path), "--max-epoch", "1", "--eval-bleu",
                 "--eval-bleu-remove-bpe", "subword_nmt", "--eval-bleu-print-samples"]) == 0
    out = capsys.readouterr().out
    assert "@@" not in re.search(r"reference: .*", out)[0]
    assert "warning" not in out
    assert main(["train", in_pieces[0], *TINY_FLAGS, "--save-dir", str(tmp_path), "--max-epoch", "2", "--eval-bleu",
                 "--eval-bleu-remove-bpe", "sentencepiece"]) == 0
    assert "warning: --eval-bleu-remove-bpe sentencepiece: no symbol of the dictionary has the mark" in capsys.readouterr().out


def test_a_mark_that_never_occurs_is_told(trained, capsys, monkeypatch):
    assert main(["generate", trained[0], "--path", trained[1], "--gen-subset", "valid", "--remove-bpe", "--quiet"]) == 0
    assert capsys.readouterr().err.count("warning: --remove-bpe @@: no symbol of the dictionary has the mark @@") == 1
    err = interactive(monkeypatch, capsys, trained, "the boat\nthe moon\n", "--remove-bpe", "--buffer-size", "1").err
    assert err.count("no symbol of the dictionary has the mark @@") == 1


def test_lines_of_interactive_and_generate_are_the_same(trained, capsys, monkeypatch):
    """One writer serves both, --remove-bpe included: here its mark is a word, so that it takes something away."""
    flags = ["--print-alignment", "--remove-bpe", "THE"]
    expected = generate(capsys, trained, *flags)
    sources = [cells[0] for cells in rows(generate(capsys, trained), "S").values()]
    found = interactive(monkeypatch, capsys, trained, "\n".join(sources), *flags).out.splitlines()
    assert "THE" not in "".join(found)
    same(found, [line for line in expected if line[:2] in ("S-", "H-", "D-", "P-", "A-")])


def test_odd_lines_do_not_end_a_pipe(trained, capsys, monkeypatch):
    text = b"the old boat\n\nbird \xff garden\n" + b"red " * 5000 + b"\nthe moon\n"
    captured = interactive(monkeypatch, capsys, trained, text, "--plain", "--too-long", "skip")
    assert len(captured.out.splitlines()) == 5
    assert captured.out.splitlines()[1] == ""
    assert captured.out.splitlines()[3] == ""
    assert "line 3 of standard input is not valid UTF-8 at byte 5" in captured.err
    assert "line 4 has 5001 tokens" in captured.err


def test_every_line_has_as_many_translations(trained, capsys, monkeypatch):
    out = interactive(monkeypatch, capsys, trained, "the old boat\n\nthe moon\n", "--plain", "--beam", "3", "--nbest", "2").out
    lines = out.splitlines()
    assert len(lines) == 6
    assert lines[2:4] == ["", ""]
    assert all(lines[:2] + lines[4:])


def test_lines_from_a_file(trained, capsys, monkeypatch, tmp_path):
    (tmp_path / "lines.txt").write_text("the old boat\n")
    assert interactive(monkeypatch, capsys, trained, "", "--input", str(tmp_path / "lines.txt"), "--plain").out
    assert main(["interactive", "--path", trained[1], "--input", "nowhere.txt"]) == 2
    assert "--input nowhere.txt cannot be read" in capsys.readouterr().err


# -- rescore

def test_rescoring_agrees_with_generate(trained, capsys, tmp_path):
    lines = generate(capsys, trained)
    (tmp_path / "src").write_text("\n".join(cells[0] for cells in rows(lines, "S").values()) + "\n")
    (tmp_path / "hyp").write_text("\n".join(cells[1] for cells in rows(lines, "D").values()) + "\n")
    assert main(["rescore", "--path", trained[1], "--source", str(tmp_path / "src"), "--target", str(tmp_path / "hyp"),
                 "--cpu", "--json", str(tmp_path / "scored.json")]) == 0
    scored = capsys.readouterr().out.splitlines()
    for number, (mean, total) in rows(scored, "H").items():
        assert float(mean) == pytest.approx(float(rows(lines, "H")[number][0]), abs=1e-4)
        values = [float(value) for value in rows(scored, "P")[number][0].split()]
        assert sum(values) == pytest.approx(float(total), abs=1e-2)
    bits, ppl = re.fullmatch(r"Loss \(base 2\): ([\d.]+), Perplexity: ([\d.]+)", scored[-1]).groups()
    assert float(ppl) == pytest.approx(2 ** float(bits), rel=1e-2)
    assert math.isfinite(float(bits))
    written = json.loads((tmp_path / "scored.json").read_text())
    assert written["figures"] == pytest.approx({"loss": float(bits), "ppl": float(ppl)}, rel=1e-2)
    assert (written["sentences"], written["skipped"]) == (6, 0)


def test_rescoring_needs_aligned_files(trained, capsys, tmp_path):
    (tmp_path / "a").write_text("x\ny\n")
    (tmp_path / "b").write_text("x\n")
    assert main(["rescore", "--path", trained[1], "--source", str(tmp_path / "a"), "--target", str(tmp_path / "b")]) == 2
    assert "2 lines and" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["nowhere", "."])
def test_rescoring_a_file_that_is_none(trained, capsys, tmp_path, name):
    (tmp_path / "b").write_text("x\n")
    assert main(["rescore", "--path", trained[1], "--source", str(tmp_path / name), "--target", str(tmp_path / "b")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {tmp_path / name} ")


def test_pairs_that_are_skipped_do_not_count(trained, capsys, tmp_path):
    def last_line(sources):
        (tmp_path / "src").write_text("".join(f"{line}\n" for line in sources))
        (tmp_path / "tgt").write_text("THE OLD BOAT\n" * len(sources))
        assert main(["rescore", "--path", trained[1], "--source", str(tmp_path / "src"), "--target", str(tmp_path / "tgt"),
                     "--too-long", "skip", "--cpu"]) == 0
        captured = capsys.readouterr()
        return captured.out.splitlines()[-1], captured.err

    long = "red " * 5000
    assert last_line(["the old boat", long]) == (
        last_line(["the old boat"])[0],
        "warning: source line 2 has 5001 tokens, more than the 1024 positions of the model; it was skipped.\n"
        "| 1 of 2 pairs were skipped, and do not count in what follows\n")


def test_the_wrong_way_round_is_told(trained, capsys):
    data, path = trained
    assert main(["generate", data, "--path", path, "-s", "xx", "-t", "en", "--gen-subset", "valid", "--cpu"]) in (0, 2)
    assert "translates from en to xx, and is given xx to translate into en" in capsys.readouterr().err


# -- constraints and unknown words

def test_words_of_the_references_raise_the_score(trained, capsys):
    """A model that knows a little, told one word of each answer: every translation has it, and BLEU goes up."""
    import lamina
    from lamina.metrics.bleu import corpus_bleu

    lines = generate(capsys, trained)
    sources, references = ([cells[0] for cells in rows(lines, kind).values()] for kind in "ST")
    translator = lamina.load(trained[1], device="cpu")
    words = [reference.split()[len(reference.split()) // 2] for reference in references]
    plain = [found.text for found in translator.translate(sources, beam=8)]
    told = [found.text for found in translator.translate(sources, beam=8, constraints=[[word] for word in words])]
    assert all(word in text.split() for word, text in zip(words, told, strict=True))
    assert any(word not in text.split() for word, text in zip(words, plain, strict=True))
    assert corpus_bleu(told, references, is_tokenized=False) > corpus_bleu(plain, references, is_tokenized=False)


def test_constraints_in_a_pipe(trained, capsys, monkeypatch):
    out = interactive(monkeypatch, capsys, trained, "the old boat\tMOON\tRED\n", "--constraints", "unordered").out.splitlines()
    assert [line.split("-")[0] for line in out] == ["S", "C", "C", "H", "D", "P"]
    assert {"MOON", "RED"} <= set(rows(out, "D")[0][1].split())


def test_an_impossible_constraint_is_left_out(trained, capsys, monkeypatch):
    captured = interactive(monkeypatch, capsys, trained, "the old boat\tnoword\tMOON\nthe moon\n", "--constraints")
    assert "line 1, constraint 'noword' is left out: the target dictionary has no 'noword'" in captured.err
    out = captured.out.splitlines()
    assert "MOON" in rows(out, "D")[0][1].split()
    assert len(rows(out, "H")) == 2


@pytest.mark.parametrize(("dictionary", "expected"), [("", "X boat"), ("boat BARCA\nx y\n", "X BARCA")])
def test_unknown_words_are_replaced(tmp_path, dictionary, expected):
    from lamina.config.generate_options import OutputConfig
    from lamina.decode.backtrace import Hypothesis
    from lamina.decode.output_lines import Describer
    from lamina.text.subword import Whitespace
    from lamina.text.vocabulary import Vocabulary

    path = tmp_path / "words.txt"
    path.write_text(dictionary)
    source, target = Vocabulary(["old", "boat"], [1, 1]), Vocabulary(["X"], [1])
    output = OutputConfig(replace_unk=str(path) if dictionary else "", alignment="hard")
    describer = Describer((source, target), (Whitespace(), Whitespace()), output)
    attention = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.0, 0.0, 1.0]])
    described = describer.hypothesis(7, Hypothesis([4, 3, 2], -1.0, [-1.0, -1.0, -1.0], attention), [4, 5, 2])
    assert described.tokens == expected
    assert described.lines[-1] == "A-7\t0-0 1-1"


@pytest.fixture(scope="module")
def with_strangers(trained, tmp_path_factory):
    """A split with words that the dictionary lacks, and its source text."""
    folder = tmp_path_factory.mktemp("strangers")
    (folder / "test.en").write_text("the zeppelin opens\nold boat sings\nquark near the quark\n")
    (folder / "test.xx").write_text("OPENS ZEPPELIN THE\nSINGS BOAT OLD\nQUARK THE NEAR QUARK\n")
    dictionary = f"{trained[0]}/dict.en.txt"
    assert main(["preprocess", "-s", "en", "-t", "xx", "--testpref", str(folder / "test"), "--srcdict", dictionary,
                 "--joined-dictionary", "--destdir", str(folder / "data"), "--workers", "1"]) == 0
    return str(folder / "data"), folder / "test.en"


# Every translation is made of <unk>, so that what takes its place can be seen.
ALL_UNKNOWN = ["--gen-subset", "test", "--unkpen", "-100", "--max-len-b", "4", "--replace-unk"]


def test_words_that_the_dictionary_lacks_come_from_the_source_text(trained, with_strangers, capsys):
    data, text = with_strangers
    line = ["generate", data, "--path", trained[1], "--cpu", *ALL_UNKNOWN]
    assert main(line) == 0
    captured = capsys.readouterr()
    assert ("warning: 3 source words of 2 sentences are not in the dictionary, and a data folder does not keep them: "
            "--replace-unk leaves <unk> where it would copy one. Name the source lines with --source-text FILE") in captured.err
    silent = rows(captured.out.splitlines(), "H")
    assert "<unk>" in silent[2][1]
    assert main([*line, "--source-text", str(text)]) == 0
    captured = capsys.readouterr()
    assert "warning" not in captured.err
    lines = captured.out.splitlines()
    sources = text.read_text().splitlines()
    assert [cells[0] for cells in rows(lines, "S").values()] == sources
    for number, (score, found) in rows(lines, "H").items():
        assert score == silent[number][0]
        assert set(found.split()) <= set(sources[number].split())
    assert "quark" in rows(lines, "H")[2][1]
    # The other half, where interactive reads the same lines.
    assert main(["interactive", "--path", trained[1], "--cpu", "--input", str(text), *ALL_UNKNOWN[2:]]) == 0
    typed = rows(capsys.readouterr().out.splitlines(), "H")
    assert [cells[1] for cells in typed.values()] == [cells[1] for cells in rows(lines, "H").values()]


def test_only_the_text_of_the_split_will_do(trained, with_strangers, tmp_path, capsys):
    data, text = with_strangers
    line = ["generate", data, "--path", trained[1], "--cpu", *ALL_UNKNOWN, "--source-text", str(tmp_path / "other")]
    (tmp_path / "other").write_text("the zeppelin opens\n")
    assert main(line) == 2
    assert "has 1 lines, but" in capsys.readouterr().err
    (tmp_path / "other").write_text(text.read_text().replace("boat", "bird"))
    assert main(line) == 2
    assert "other, line 2 is not the source of sentence 1 of" in capsys.readouterr().err
    assert main(["generate", data, "--path", trained[1], "--source-text", str(text)]) == 2
    assert "--source-text has no effect without --replace-unk" in capsys.readouterr().err
    # A source that is cut is still that line's.
    assert main([*line[:-1], str(text), "--truncate-source"]) == 0


def test_a_bad_replacement_file(tmp_path):
    from lamina.decode.output_lines import read_replacements
    from lamina.errors import DataError

    (tmp_path / "bad").write_text("one\n")
    with pytest.raises(DataError, match="line 1: expected `source target`"):
        read_replacements(str(tmp_path / "bad"))
    with pytest.raises(DataError, match="cannot be read"):
        read_replacements(str(tmp_path / "nowhere"))


def test_one_precision_at_a_time(trained, capsys):
    data, path = trained
    assert main(["generate", data, "--path", path, "--fp16", "--fp32"]) == 2
    assert "--fp16 and --fp32 exclude each other" in capsys.readouterr().err
    same(generate(capsys, trained, "--fp32"), generate(capsys, trained))


@pytest.mark.skipif(not has_onednn(), reason="no oneDNN kernels here")
def test_eight_bits_translate_nearly_the_same(trained, capsys):
    whole, rounded = (generate(capsys, trained, *flags) for flags in ([], ["--quantize", "int8"]))
    scores = [[float(score) for score, _ in rows(lines, "H").values()] for lines in (whole, rounded)]
    assert scores[0] != scores[1]
    assert scores[0] == pytest.approx(scores[1], abs=0.1)
    assert sum(own == other for own, other in zip(rows(whole, "D").values(), rows(rounded, "D").values(), strict=True)) == 0
    same(rounded, generate(capsys, trained, "--quantize", "int8", "--batch-size", "1"))


@pytest.mark.skipif(not has_onednn(), reason="no oneDNN kernels here")
def test_eight_bits_with_fewer_layers_in_a_pipe(trained, capsys, monkeypatch):
    flags = ["--quantize", "int8", "--decoder-layers-to-keep", "0"]
    texts = [text for _, text in rows(generate(capsys, trained, *flags), "D").values()]
    sources = [source for (source,) in rows(generate(capsys, trained), "S").values()]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n".join(sources).encode())))
    assert main(["interactive", "--path", trained[1], "--cpu", "--plain", *flags]) == 0
    assert capsys.readouterr().out.splitlines() == texts
