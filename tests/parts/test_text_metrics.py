"""One table of metrics: built-in ones, and one from outside used by every command that scores texts."""

import re
from dataclasses import dataclass
from typing import ClassVar

import pytest

from lamina.cli import main
from lamina.config.train_options import ValidationConfig
from lamina.errors import ConfigError
from lamina.fields import flag
from lamina.parts import Figure, Metric, MetricInputs
from lamina.parts.figures import known_figures, metric_of
from lamina.plug_ins import restored
from lamina.registry import register
from tiny import TINY_FLAGS, make_data


@dataclass(frozen=True, kw_only=True)
class Mine(Metric):
    """The share of texts that are a reference's, in per cent."""

    is_loose: bool = flag(False, "white space does not count", name="mine-loose")

    def corpus(self, hypotheses, references, inputs):
        texts = [[text.replace(" ", "") if self.is_loose else text for text in side] for side in (hypotheses, *references)]
        equal = sum(hypothesis in answers for hypothesis, *answers in zip(*texts, strict=True))
        return self.score({"mine": 100 * equal / len(hypotheses)})


@pytest.fixture
def mine():
    """As --user-dir would; afterwards it is gone again, and so is what was derived from it."""
    with restored():
        yield register.metric("mine")(Mine)


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sys").write_text("a b\nc\nd e f\ng\n")
    (tmp_path / "ref").write_text("ab\nc\nd e f\nh\n")


def failure(capsys, *words):
    assert main(list(words)) == 2
    return capsys.readouterr().err


def test_score_takes_a_metric_of_ones_own(mine, files, capsys):
    words = ["score", "--sys", "sys", "--ref", "ref"]
    assert main([*words, "--metric", "mine,ter"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["mine = 50.00", "metric:mine"]
    assert lines[2].startswith("TER = ")
    assert main([*words, "--metric", "mine", "--mine-loose"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "mine = 75.00"
    assert "--mine-loose has no effect without MINE. Add mine" in failure(capsys, *words, "--mine-loose")
    assert "--sentence-bleu has no meaning for gleu and m2 and errant and mine" in failure(
        capsys, *words, "--metric", "mine", "--sentence-bleu")
    assert "--baseline compares by bleu, chrf, ter," in failure(capsys, *words, "--metric", "mine", "--baseline", "sys")


def test_without_it_its_name_is_refused(files, capsys):
    assert "--metric is 'mine'; it must be one of bleu, chrf, ter, rouge, gleu, m2, errant, or several of them" in failure(
        capsys, "score", "--sys", "sys", "--ref", "ref", "--metric", "bleu,mine")
    with pytest.raises(ConfigError, match="'mine' is no figure of a metric; those are bleu, chrf, ter, rouge1"):
        metric_of("mine")
    with pytest.raises(ConfigError, match="'loss' is no figure of a metric"):
        metric_of("loss")


def test_a_metric_without_references_wants_none(files, capsys):
    @dataclass(frozen=True, kw_only=True)
    class Length(Metric):
        """Words for each word of the source."""

        needs = frozenset({"sources"})
        figures: ClassVar = {"length": Figure("length", 1)}

        def corpus(self, hypotheses, references, inputs):
            own, given = (sum(len(text.split()) for text in side) for side in (hypotheses, inputs.sources))
            return self.score({"length": own / given}, signature="words")

    with restored():
        register.metric("length")(Length)
        words = ["score", "--sys", "sys", "--metric", "length"]
        assert main([*words, "--source", "ref"]) == 0
        assert capsys.readouterr().out.splitlines() == ["length = 1.2", "words"]
        assert "--metric length judges what became of the source: give its file" in failure(capsys, *words)
        assert "--ref has no effect on LENGTH, which needs no references" in failure(
            capsys, *words, "--source", "ref", "--ref", "ref")
        assert "--metric is 'length'" in failure(capsys, "generate", "data", "--path", "x", "--metric", "length")


def test_figures_are_those_that_were_declared(mine):
    with pytest.raises(ConfigError, match="--metric mine gave the figures other, where its `figures` are mine"):
        Mine().score({"other": 1.0})

    @dataclass(frozen=True, kw_only=True)
    class Again(Mine):
        """A figure that is there already."""

        figures: ClassVar = {"bleu": Figure("BLEU")}

    with restored():
        register.metric("again")(Again)
        with pytest.raises(ConfigError, match=r"the figure 'bleu' of .*Again is there already"):
            known_figures()


@pytest.mark.parametrize("name", ["bleu", "chrf", "ter", "rouge"])
def test_sentences_and_corpus_agree_on_one_text(name):
    if name == "rouge":
        pytest.importorskip("rouge_score")
    metric = register.metric[name]()
    corpus = metric.corpus(["a b c d e"], [["a b c d e"]], MetricInputs())
    sentence, = metric.sentences(["a b c d e"], [["a b c d e"]], MetricInputs())
    assert corpus.values == pytest.approx(sentence.values)
    assert set(corpus.values) == set(metric.own_figures())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("metric")
    data = make_data(folder, num_lines=24)
    assert main(["train", str(data), *TINY_FLAGS, "--decoder-layers", "2", "--max-tokens", "200", "--max-epoch", "1",
                 "--log-format", "none", "--cpu", "--save-dir", str(folder / "out")]) == 0
    return data, folder / "out" / "checkpoint_last.pt"


def test_generate_takes_a_metric_of_ones_own(mine, trained, capsys):
    data, path = trained
    assert main(["generate", str(data), "--path", str(path), "--gen-subset", "valid", "--cpu", "--quiet", "--metric",
                 "mine,bleu", "--beam", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Generate valid with beam=2: mine = ")
    assert lines[1] == "| metric:mine"
    assert lines[2].startswith("Generate valid with beam=2: BLEU4 = ")


def test_validation_and_pruning_are_judged_by_a_metric_of_ones_own(mine, trained, tmp_path, capsys):
    data, path = trained
    words = ["train", str(data), *TINY_FLAGS, "--max-tokens", "200", "--max-epoch", "1", "--log-format", "simple", "--cpu",
             "--save-dir", str(tmp_path / "out"), "--best-checkpoint-metric", "mine"]
    assert "needs MINE at validation: add --eval-metric mine" in failure(capsys, *words)
    assert main([*words, "--eval-metric", "mine,ter"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\| mine \d+\.\d\d \| ter \d+\.\d\d \| best_mine \d+\.\d\d \|", out)
    assert main(["prune", str(path), str(data), "--search", "--decoder-layers", "1", "--metric", "mine", "--max-tokens", "400",
                 "--output", str(tmp_path / "small.pt"), "--cpu"]) == 0
    assert "| mine, on valid:" in capsys.readouterr().out


def test_what_is_better_follows_from_the_figure():
    better = {name: known.figure.larger_is_better for name, known in known_figures().items()}
    assert [name for name, is_larger in better.items() if not is_larger] == ["loss", "nll_loss", "ppl", "ter", "mse"]
    assert ValidationConfig(best_metric="ter", eval_metrics=("ter",)).prefers_larger is False
    assert ValidationConfig(best_metric="bleu", eval_bleu=True).prefers_larger is True
    assert ValidationConfig(eval_bleu=True, eval_metrics=("chrf", "bleu")).metrics == ["bleu", "chrf"]
